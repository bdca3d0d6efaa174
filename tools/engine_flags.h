// The flags that say how a run reads and computes: --io-engine, --direct, --io-core, --kernels.
#ifndef SLUICE_TOOLS_ENGINE_FLAGS_H_
#define SLUICE_TOOLS_ENGINE_FLAGS_H_

#include <cstdint>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "runtime/decoder.h"

namespace sluice {

struct EngineFlags {
  std::string engine = "auto", direct = "auto", kernels;
  int64_t io_core = -1;
};
void AddEngineFlags(CLI::App& cmd, EngineFlags* flags);

// Sets *mapped, where the kernel is to map the weights. InvalidArgument, naming the flag, for what
// is not known or cannot be had here.
absl::Status ReadEngineFlags(const EngineFlags& flags, bool* mapped, DecoderOptions* options);

}  // namespace sluice

#endif  // SLUICE_TOOLS_ENGINE_FLAGS_H_
