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
// one). A context beyond the trained one is noted on stderr, one beyond an attention window
// refused.
absl::StatusOr<uint32_t> ChooseContext(const ModelConfig& config, int64_t wanted);

// What `-t` asks for; -1: one a core that this process may use.
absl::StatusOr<int> ChooseThreads(int64_t wanted);

// What `--mode` asks for; auto: predicted where the model has predictors, else exact.
absl::StatusOr<DecodeMode> ChooseMode(const std::string& text, const SluiceFile& file);

// What `--direct` asks for: auto, on or off.
absl::StatusOr<DirectMode> ParseDirect(const std::string& text);

}  // namespace sluice

#endif  // SLUICE_TOOLS_RUN_FLAGS_H_
