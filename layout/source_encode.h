// Encoding of floats into the source types that Sluice writes itself: F32, F16, Q4_0 and Q8_0.
// Thread-safe.
#ifndef SLUICE_LAYOUT_SOURCE_ENCODE_H_
#define SLUICE_LAYOUT_SOURCE_ENCODE_H_

#include <cstddef>
#include <span>

#include "layout/source_type.h"

namespace sluice {

// True for the four types above.
bool CanEncodeSource(SourceType type);

// The inverse of DecodeSource: src.size() must be a multiple of BlockElements and dst.size() the
// matching number of bytes. Values must be finite.
//   Q4_0: the element of largest magnitude of a block of 32 maps to -8, the others round half up,
//         limited to 7.
//   Q8_0: the largest magnitude maps to 127, the others round to the nearest integer.
void EncodeSource(SourceType type, std::span<const float> src, std::span<std::byte> dst);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SOURCE_ENCODE_H_
