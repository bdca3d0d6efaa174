// Decoders of the K formats: super-blocks of 256 elements whose sub-block scales are themselves
// quantised. Used through DecodeSource; thread-safe.
#ifndef SLUICE_LAYOUT_KQUANTS_H_
#define SLUICE_LAYOUT_KQUANTS_H_

#include <cstddef>

namespace sluice {

// Each reads one super-block and writes 256 floats.
void DecodeQ4KBlock(const std::byte* block, float* dst);
void DecodeQ5KBlock(const std::byte* block, float* dst);
void DecodeQ6KBlock(const std::byte* block, float* dst);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_KQUANTS_H_
