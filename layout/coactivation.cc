#include "layout/coactivation.h"

namespace sluice {
namespace {

// The number of bits of each 64-bit element.
template <typename Word>
Word CountBits(Word x) {
  constexpr uint64_t kOdd = 0x5555555555555555, kPairs = 0x3333333333333333,
                     kNibbles = 0x0f0f0f0f0f0f0f0f;
  x -= (x >> 1) & kOdd;
  x = (x & kPairs) + ((x >> 2) & kPairs);
  x = (x + (x >> 4)) & kNibbles;
  x += x >> 8;
  x += x >> 16;
  x += x >> 32;
  return x & 0xff;
}

// Adds three bits: their sum stays in *sum, the carry is returned.
template <typename Word>
Word Add(Word* sum, Word a, Word b) {
  const Word half = *sum ^ a;
  const Word carry = (*sum & a) | (half & b);
  *sum = half ^ b;
  return carry;
}

}  // namespace

Coactivation::Coactivation(uint32_t n_neurons, uint32_t n_tokens)
    : n_neurons_(n_neurons),
      n_tokens_(n_tokens),
      row_words_((n_tokens + kGroup * kWordBits - 1) / (kGroup * kWordBits) * kGroup),
      bits_(size_t{n_neurons} * row_words_) {}

void Coactivation::Set(uint32_t neuron, uint32_t token) {
  Word& word = bits_[size_t{neuron} * row_words_ + token / kWordBits];
  word[token / 64 % 2] |= uint64_t{1} << token % 64;
}

uint32_t Coactivation::Count(uint32_t neuron) const {
  return CountBoth(Row(neuron), Row(neuron), row_words_);
}

void Coactivation::CountTogether(uint32_t neuron, std::span<const uint32_t> others,
                                 std::span<uint32_t> counts) const {
  const Word* const row = Row(neuron);
  for (size_t i = 0; i < others.size(); ++i) counts[i] = CountBoth(row, Row(others[i]), row_words_);
}

uint32_t Coactivation::CountBoth(const Word* a, const Word* b, uint32_t n_words) {
  Word ones = {}, twos = {}, fours = {}, eights = {};
  for (uint32_t w = 0; w < n_words; w += kGroup) {
    const Word* const p = a + w;
    const Word* const q = b + w;
    const Word twos_a = Add(&ones, p[0] & q[0], p[1] & q[1]);
    const Word twos_b = Add(&ones, p[2] & q[2], p[3] & q[3]);
    const Word fours_a = Add(&twos, twos_a, twos_b);
    const Word twos_c = Add(&ones, p[4] & q[4], p[5] & q[5]);
    const Word twos_d = Add(&ones, p[6] & q[6], p[7] & q[7]);
    const Word fours_b = Add(&twos, twos_c, twos_d);
    eights += CountBits(Add(&fours, fours_a, fours_b));
  }
  const Word sum = 8 * eights + 4 * CountBits(fours) + 2 * CountBits(twos) + CountBits(ones);
  return static_cast<uint32_t>(sum[0] + sum[1]);
}

}  // namespace sluice
