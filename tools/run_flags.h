// Flags that mean the same in every command that runs a model.
#ifndef SLUICE_TOOLS_RUN_FLAGS_H_
#define SLUICE_TOOLS_RUN_FLAGS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "io/storage_file.h"
#include "layout/sluice_file.h"
#include "runtime/memory_plan.h"

namespace sluice {

// InvalidArgument naming the flag.
absl::Status InRange(const char* flag, int64_t v, int64_t min, int64_t max);

// What `-c` asks for (0: what the model was trained with; -1: that, but not all of a very long
// one). A context beyond the trained one is noted on stderr, one beyond an attention window or
// beyond learned positions refused.
absl::StatusOr<uint32_t> ChooseContext(const ModelConfig& config, int64_t wanted);

// What `-t` asks for; -1: one a core that this process may use.
absl::StatusOr<int> ChooseThreads(int64_t wanted);

// What `--mode` and the like ask for; auto: predicted where the model has predictors
// and an activation with exact zeros, else exact.
absl::StatusOr<DecodeMode> ChooseMode(const char* flag, const std::string& text,
                                      const SluiceFile& file);
// A plan for the request. Without a budget everything stays in DRAM if that leaves a quarter of
// what is available; else the plan gets three quarters of it as its budget, which is said on
// stderr.
absl::StatusOr<MemoryPlan> PlanRun(const SluiceFile& file, PlanRequest request);

// What `--direct` asks for: auto, on or off.
absl::StatusOr<DirectMode> ParseDirect(const std::string& text);

}  // namespace sluice

#endif  // SLUICE_TOOLS_RUN_FLAGS_H_
