// What the files of activations have in common: small enough to be read whole, and packed as zstd
// frames in proportion to what they hold, so that a small file cannot make a reader take much
// memory. Real sets are noise to a compressor; but sets that are all empty or full shrink without
// bound, and so does a file made to exhaust memory.
#ifndef SLUICE_PREDICTOR_PACKED_FILE_H_
#define SLUICE_PREDICTOR_PACKED_FILE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sluice {

// Appends `bytes` as one frame. Of more than 4 MiB they become at least a sixteenth: where they
// would shrink more, a frame that zstd skips makes up the size.
absl::Status AppendFrame(std::span<const std::byte> bytes, std::vector<std::byte>* out);
// Whether `frame` says that it holds `n_bytes`, and is large enough for that to be believed. To be
// asked before memory is taken for them.
bool FrameHolds(std::span<const std::byte> frame, uint64_t n_bytes);
// False if the frame is damaged or does not hold exactly out.size() bytes.
bool UnpackFrame(std::span<const std::byte> frame, std::span<std::byte> out);

// The bytes of a file that begins with `magic`; `what` is what it should be, as in "activation
// trace". NotFound, InvalidArgument for a file of another kind or larger than `max_bytes`.
absl::StatusOr<std::vector<std::byte>> ReadPackedFile(const std::string& path,
                                                      std::string_view magic, uint64_t max_bytes,
                                                      const std::string& what);
absl::Status NotOfKind(const std::string& source, const std::string& what);

}  // namespace sluice

#endif  // SLUICE_PREDICTOR_PACKED_FILE_H_
