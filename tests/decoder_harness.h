// Repacked models and decoders over them, for the tests of runtime/.
#ifndef SLUICE_TESTS_DECODER_HARNESS_H_
#define SLUICE_TESTS_DECODER_HARNESS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "io/fault_engine.h"
#include "layout/model_source.h"
#include "layout/sluice_file.h"
#include "runtime/decoder.h"
#include "tests/test_paths.h"
#include "tests/toy_model.h"

namespace sluice {

// The value; the test fails with the status if there is none.
template <typename T>
T Must(absl::StatusOr<T> value) {
  if (!value.ok()) throw std::runtime_error(value.status().ToString());
  return std::move(value).value();
}
inline void MustBeOk(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

// A model as it came and repacked, in a folder of its own.
class PackedModel {
 public:
  // All matrices and bundles get `type`; `block` as in RepackOptions.
  PackedModel(const std::string& gguf, WeightType type, uint32_t block = 0);
  PackedModel(const ToyModel& toy, WeightType type, uint32_t block = 0);

  const std::string& path() const { return file_->path(); }
  const SluiceFile& file() const { return *file_; }
  const ModelSource& source() const { return *source_; }

 private:
  void Repack(const std::string& gguf, WeightType type, uint32_t block);

  TempDir dir_;
  std::unique_ptr<ModelSource> source_;
  std::unique_ptr<SluiceFile> file_;
};

// One way of running a model.
struct Way {
  DecodeMode mode = DecodeMode::kExact;
  uint64_t budget = UINT64_MAX;
  uint32_t context = 64;
  uint32_t chunk = 64;
  uint32_t logit_rows = 1;
  int threads = 1;
  EngineKind engine = EngineKind::kPread;
  DirectMode direct = DirectMode::kAuto;
  const KernelTable* kernels = nullptr;
  bool mapped = false;
  const FaultConfig* faults = nullptr;  // null: none
  std::shared_ptr<const DeviceProfile> profile = nullptr;
  ActivationTrace* trace = nullptr;
  FfnObserver* observer = nullptr;
  bool look_ahead = true;
  double miss_skip = 0;
  bool predict_heads = false;

  PlanRequest request() const;
};
// For the message of a failed comparison.
std::string Describe(const Way& way);

absl::StatusOr<std::unique_ptr<Decoder>> OpenDecoder(const SluiceFile& file, const Way& way);

// Budgets from the smallest that is accepted up to everything resident.
std::vector<uint64_t> Budgets(const SluiceFile& file, const Way& way);
// The least budget under which chunks of so many tokens pass through a layer together; the cache
// does not hold all bundles yet (else the test fails), so that decoding goes on reading.
uint64_t LeastBudgetFor(const SluiceFile& file, const Way& way, uint32_t chunk);
// Wide enough that a budget with room for chunks of 8 tokens has none for all bundles.
ToyModel WideToy();
// A device of which every kind of trouble comes at times, but for errors that stay.
FaultConfig AllFaults(uint64_t seed);
// io_uring, where it works, and pread threads.
std::vector<EngineKind> Engines();

using Logits = std::vector<std::vector<float>>;

// Passes the first `prompt` of `tokens` in one call, the others one by one; the logits after each
// call.
absl::StatusOr<Logits> RunTokens(Decoder& decoder, std::span<const int32_t> tokens, size_t prompt);
absl::StatusOr<Logits> RunTokens(const SluiceFile& file, const Way& way,
                                 std::span<const int32_t> tokens, size_t prompt);

// Fails the test unless the weights, however they come (engines, budgets, chunks, one or two
// threads, mapped), give these logits in this mode and with all else that `base` says.
void ExpectSameBitsEveryWay(const SluiceFile& file, const Way& base,
                            std::span<const int32_t> tokens, size_t prompt, const Logits& expected);

// Greedy decoding: `n` tokens after `prompt`.
absl::StatusOr<std::vector<int32_t>> RunGreedy(Decoder& decoder, std::vector<int32_t> prompt,
                                               size_t n);

int32_t Best(std::span<const float> logits);
// The largest difference of two vectors of logits; infinite where one has a NaN.
float MaxError(std::span<const float> a, std::span<const float> b);
// Whether all bits are equal.
bool SameBits(const Logits& a, const Logits& b);

// `n` tokens of a vocabulary, the same for the same seed.
std::vector<int32_t> RandomTokens(size_t n, uint32_t vocab_size, uint64_t seed = 7);

}  // namespace sluice

#endif  // SLUICE_TESTS_DECODER_HARNESS_H_
