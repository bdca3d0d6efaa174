#include "layout/kquants.h"

#include <cstdint>

#include "layout/byte_io.h"
#include "layout/weight_type.h"

namespace sluice {
namespace {

float LoadHalf(const std::byte* p) { return HalfToFloat(LoadLe<uint16_t>(p)); }
unsigned Byte(const std::byte* p) { return static_cast<unsigned>(*p); }

struct ScaleAndMin {
  float scale, min;
};

// Q4_K and Q5_K: eight sub-blocks of 32 share 12 bytes of 6-bit scales and 6-bit minima. Bytes 0-3
// hold scales 0-3 and bytes 4-7 minima 0-3 in their low six bits. Byte 8 + k holds the low four
// bits of scale 4 + k (low nibble) and of minimum 4 + k (high nibble); their upper two bits are the
// spare upper bits of bytes k and 4 + k.
ScaleAndMin UnpackSubBlock(const std::byte* packed, unsigned sub) {
  unsigned scale, min;
  if (sub < 4) {
    scale = Byte(packed + sub) & 63;
    min = Byte(packed + 4 + sub) & 63;
  } else {
    const unsigned k = sub - 4;
    const unsigned low = Byte(packed + 8 + k);
    scale = (low & 15) | Byte(packed + k) >> 6 << 4;
    min = low >> 4 | Byte(packed + 4 + k) >> 6 << 4;
  }
  return {static_cast<float>(scale), static_cast<float>(min)};
}

// Sub-blocks 2g and 2g + 1 are the low and the high nibbles of the 32 bytes at 32g.
unsigned SubBlockNibble(const std::byte* nibbles, unsigned sub, unsigned i) {
  const unsigned byte = Byte(nibbles + sub / 2 * 32 + i);
  return sub % 2 == 0 ? byte & 15 : byte >> 4;
}

}  // namespace

// {f16 d, f16 dmin, 12 bytes of scales and minima, 128 bytes of nibbles}:
// d * scale * q - dmin * min.
void DecodeQ4KBlock(const std::byte* block, float* dst) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  for (unsigned sub = 0; sub < 8; ++sub) {
    const ScaleAndMin s = UnpackSubBlock(block + 4, sub);
    const float step = d * s.scale;
    const float offset = dmin * s.min;
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned q = SubBlockNibble(block + 16, sub, i);
      dst[sub * 32 + i] = step * static_cast<float>(q) - offset;
    }
  }
}

// As Q4_K, with 32 bytes of fifth bits before the nibbles: bit `sub` of byte i belongs to element i
// of sub-block `sub`.
void DecodeQ5KBlock(const std::byte* block, float* dst) {
  const float d = LoadHalf(block);
  const float dmin = LoadHalf(block + 2);
  for (unsigned sub = 0; sub < 8; ++sub) {
    const ScaleAndMin s = UnpackSubBlock(block + 4, sub);
    const float step = d * s.scale;
    const float offset = dmin * s.min;
    for (unsigned i = 0; i < 32; ++i) {
      const unsigned fifth = Byte(block + 16 + i) >> sub & 1;
      const unsigned q = SubBlockNibble(block + 48, sub, i) | fifth << 4;
      dst[sub * 32 + i] = step * static_cast<float>(q) - offset;
    }
  }
}

// {128 bytes of low nibbles, 64 bytes of upper bit pairs, 16 int8 scales, f16 d}:
// d * scale * (q - 32), a scale for each 16 elements. Each half of the block (128 elements) uses 64
// bytes of nibbles and 32 bytes of pairs. Of the four runs of 32 elements in a half, runs 0 and 1
// are the low nibbles of the first and second 32 bytes, runs 2 and 3 their high nibbles; the pair
// of run r is bits 2r and 2r + 1.
void DecodeQ6KBlock(const std::byte* block, float* dst) {
  const float d = LoadHalf(block + 208);
  for (unsigned half = 0; half < 2; ++half) {
    const std::byte* low = block + half * 64;
    const std::byte* pairs = block + 128 + half * 32;
    const std::byte* scales = block + 192 + half * 8;
    for (unsigned run = 0; run < 4; ++run) {
      for (unsigned i = 0; i < 32; ++i) {
        const unsigned byte = Byte(low + run % 2 * 32 + i);
        const unsigned nibble = run < 2 ? byte & 15 : byte >> 4;
        const unsigned q = nibble | (Byte(pairs + i) >> 2 * run & 3) << 4;
        const auto scale = static_cast<float>(static_cast<int8_t>(scales[run * 2 + i / 16]));
        dst[half * 128 + run * 32 + i] = d * scale * static_cast<float>(static_cast<int>(q) - 32);
      }
    }
  }
}

}  // namespace sluice
