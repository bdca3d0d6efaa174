// Which of a layer's neurons fired for which token, as bits, and from them for how many tokens two
// fired together: exact counts, made when they are asked for. Kept, those of all pairs of 14,336
// neurons would take 400 MB; the bits of 4,096 tokens take 7.
//
// Bits of three words are added up in a carry-save adder (Harley and Seal; see Warren, Hacker's
// Delight), so that few words have to be counted, which a CPU that may be any does slowly.
#ifndef SLUICE_LAYOUT_COACTIVATION_H_
#define SLUICE_LAYOUT_COACTIVATION_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace sluice {

// Thread-compatible.
class Coactivation {
 public:
  // Takes n_neurons * n_tokens bits, tokens rounded up to 1,024.
  Coactivation(uint32_t n_neurons, uint32_t n_tokens);

  // The neuron fires for the token.
  void Set(uint32_t neuron, uint32_t token);

  uint32_t n_neurons() const { return n_neurons_; }
  uint32_t n_tokens() const { return n_tokens_; }
  // For how many tokens a neuron fires.
  uint32_t Count(uint32_t neuron) const;
  // For each of `others`, for how many tokens it fires together with `neuron`.
  void CountTogether(uint32_t neuron, std::span<const uint32_t> others,
                     std::span<uint32_t> counts) const;

 private:
  using Word = uint64_t __attribute__((vector_size(16)));  // what every 64-bit CPU has
  static constexpr uint32_t kWordBits = 128;
  static constexpr uint32_t kGroup = 8;  // words

  const Word* Row(uint32_t neuron) const { return bits_.data() + size_t{neuron} * row_words_; }
  static uint32_t CountBoth(const Word* a, const Word* b, uint32_t n_words);

  uint32_t n_neurons_, n_tokens_, row_words_;
  std::vector<Word> bits_;  // {neurons, tokens}
};

}  // namespace sluice

#endif  // SLUICE_LAYOUT_COACTIVATION_H_
