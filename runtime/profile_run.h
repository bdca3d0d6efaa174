// Runs a model over a text and makes the ActivationProfile of what its neurons do.
//
// The text is cut into sequences that each begin from an empty context, with the BOS token if there
// is one; every tenth is held out. What comes out is the same for every budget, chunk and number of
// threads.
//
// Memory, besides the decoder's: the profile (see there), and for the tokens of a chunk a bit for
// each neuron; with thresholds to find, 1 MiB a layer while they are found.
#ifndef SLUICE_RUNTIME_PROFILE_RUN_H_
#define SLUICE_RUNTIME_PROFILE_RUN_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_file.h"
#include "predictor/activation_profile.h"
#include "predictor/neuron_selector.h"
#include "runtime/decoder.h"
#include "runtime/ffn_observer.h"

namespace sluice {

constexpr uint32_t kHeldOutEvery = 10;

struct ProfileRequest {
  // Without special tokens; must outlive the run. No sequence is of two texts.
  std::span<const std::vector<int32_t>> texts;
  std::optional<int32_t> bos = std::nullopt;  // in front of each sequence
  uint32_t sequence_tokens = 0;               // at least 2; with BOS
  uint64_t set_bytes = ActivationProfile::kDefaultSetBytes;
  // Share of the neurons to make inactive in a model without exact zeros, by a threshold for each
  // layer (CATS: the quantile of |activation(gate)| over the training tokens, to one part in 512 of
  // its value). The text is run twice. Without it the thresholds of the file hold, if it has any.
  std::optional<double> sparsify = std::nullopt;
  const std::atomic<int>* stop = nullptr;
  std::function<void(uint64_t done, uint64_t total)> progress = nullptr;  // tokens
};

// Confined to one thread, the decode thread. `file` must outlive it.
class ProfileRun : public FfnObserver {
 public:
  ProfileRun(const SluiceFile& file, ProfileRequest request);

  // `decoder` was made with this run as its observer, in dense mode, with room for a sequence.
  // Cancelled if the run was stopped. Call once.
  absl::StatusOr<ActivationProfile> Run(Decoder& decoder);

  void Observe(const FfnObservation& observation) override;

 private:
  struct Sequence {
    std::span<const int32_t> text;
    bool held_out = false;
  };

  std::vector<Sequence> CutText() const;
  absl::Status RunSequences(Decoder& decoder, std::span<const Sequence> sequences,
                            bool with_held_out);
  void AddToHistogram(const FfnObservation& o);
  std::vector<float> Thresholds() const;
  void MarkActive(const FfnObservation& o);
  void AppendChunk(uint32_t n_tokens);

  const SluiceFile& file_;
  const ModelConfig& config_;
  const ProfileRequest request_;
  std::optional<ExactSelector> selector_;  // once the thresholds are known
  ActivationProfile profile_;
  uint64_t n_done_ = 0, n_total_ = 0;  // tokens, for the progress

  bool finds_thresholds_ = false;
  // [layers x kSteps] how often |activation(gate)| had the float whose leading bits are the index.
  std::vector<uint64_t> histogram_;

  std::vector<int32_t> sequence_;  // that is being run
  size_t n_observed_ = 0;          // of its tokens
  std::vector<uint32_t> positions_;
  std::vector<uint64_t> bits_;  // [tokens of a chunk x layers x words of d_ff bits] by neuron id
  std::vector<std::vector<uint32_t>> active_;  // by layer, of one token
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_PROFILE_RUN_H_
