#include "absl/strings/str_cat.h"
#include "io/pread_engine.h"
#include "io/read_engine.h"
#include "io/status.h"
#include "io/uring_engine.h"
#include "io/uring_probe.h"

namespace sluice {
namespace {

absl::StatusOr<std::unique_ptr<ReadEngine>> MakeUring(const StorageFile& file,
                                                      const EngineOptions& options) {
  SLUICE_RETURN_IF_ERROR(ProbeUring(file));
  return UringEngine::Create(file, options.depth, options.buffers);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ReadEngine>> MakeReadEngine(const StorageFile& file,
                                                           const EngineOptions& options,
                                                           std::string* note) {
  constexpr uint32_t kMostDepth = 4096;
  if (options.depth == 0 || options.depth > kMostDepth) {
    return absl::InvalidArgumentError(
        absl::StrCat("I/O queue depth ", options.depth, " is not from 1 to ", kMostDepth));
  }
  if (options.kind == EngineKind::kPread) {
    *note = "pread, as asked";
    return PreadEngine::Create(options.depth);
  }
  auto uring = MakeUring(file, options);
  if (uring.ok()) {
    *note =
        options.kind == EngineKind::kUring ? "io_uring, as asked" : "io_uring: the probe passed";
    return uring;
  }
  const std::string reason(uring.status().message());
  if (options.kind == EngineKind::kUring) {
    return absl::UnimplementedError(
        absl::StrCat("io_uring does not work here: ", reason, "; use --io-engine auto or pread"));
  }
  *note = absl::StrCat("pread: io_uring does not work here (", reason, ")");
  return PreadEngine::Create(options.depth);
}

}  // namespace sluice
