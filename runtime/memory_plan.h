// What is held in DRAM under a budget. The budget covers everything that the decoder takes: records
// of the file, tokenizer, KV cache, scratch, buffers for reads, resident matrices, neuron cache.
// The program itself (code, libraries, stacks) is not in it: at most kProcessBytes.
#ifndef SLUICE_RUNTIME_MEMORY_PLAN_H_
#define SLUICE_RUNTIME_MEMORY_PLAN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/sluice_file.h"

namespace sluice {

constexpr uint64_t kProcessBytes = 16 << 20;

// Where neurons are sparse, fewer tokens than this go through the FFN one by one, reading only
// active bundles; with more, the union of their active sets is most of the layer and large reads
// win.
constexpr uint32_t kStreamTokens = 8;

enum class DecodeMode {
  kDense,      // every neuron
  kExact,      // the gate decides; same tokens as dense, unless by thresholds
  kPredicted,  // a predictor decides; prompts are dense
};
// Whether tokens that are decoded leave neurons out.
bool IsSparse(DecodeMode mode, const SluiceFile& file);

// As flags and reports call it: "dense", "exact".
const char* DecodeModeName(DecodeMode mode);

struct PlanRequest {
  DecodeMode mode = DecodeMode::kExact;
  uint64_t budget = UINT64_MAX;  // bytes; UINT64_MAX: no limit
  uint32_t context = 0;          // positions
  uint32_t chunk = 256;          // prompt tokens that pass through a layer together, at most
  uint32_t logit_rows = 1;       // tokens whose logits are computed together, at most
  int n_threads = 1;
  uint64_t tokenizer_bytes = 0;
  bool predict_heads = false;  // in predicted mode, attention heads too; see PredictedHeads
  bool mapped = false;  // weights are used where the kernel maps them: the plan holds only the rest

  bool predicts_heads() const { return predict_heads && mode == DecodeMode::kPredicted; }
};

struct PlanItem {
  std::string name;
  uint64_t bytes = 0;
  std::string note;  // "22 of 22 layers", ...
};

struct MemoryPlan {
  PlanRequest request;
  std::vector<PlanItem> items;
  uint64_t total = 0;       // sum of the items
  uint64_t minimum = 0;     // the smallest budget that would be accepted
  uint64_t everything = 0;  // the budget from which on nothing is read twice; 0 if mapped

  std::vector<bool> resident;  // by matrix
  uint32_t n_slots = 0;        // of the neuron cache
  bool holds_all_bundles = false;
  uint32_t chunk = 1;
  uint32_t logit_rows = 1;
  uint32_t piece_bytes = 0;  // a buffer of the stream ring
  uint32_t n_buffers = 0;
  uint32_t merge_bytes = 0;  // for reads that are done together
  uint32_t io_capacity = 0;  // reads in flight
};

// ResourceExhausted naming the minimum if the budget is below it, FailedPrecondition for predicted
// mode, or prediction of heads, and a file without predictors for it, InvalidArgument for more
// positions than a model has learned.
absl::StatusOr<MemoryPlan> PlanMemory(const SluiceFile& file, const PlanRequest& request);

// The most pieces that a pass streams where misses are read one by one, and where all bundles pass.
struct PassPieces {
  size_t demand = 0, stream = 0;
};
PassPieces MaxPassPieces(const SluiceFile& file, const MemoryPlan& plan);

// "1.5 GiB".
std::string FormatBytes(uint64_t bytes);

}  // namespace sluice

#endif  // SLUICE_RUNTIME_MEMORY_PLAN_H_
