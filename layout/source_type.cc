#include "layout/source_type.h"

#include <bit>
#include <cstring>

#include "layout/byte_io.h"
#include "layout/kquants.h"
#include "layout/weight_type.h"

namespace sluice {
namespace {

struct TypeTraits {
  SourceType type;
  std::string_view name;
  uint32_t block_elements;
  uint32_t block_bytes;
};

constexpr TypeTraits kTypes[] = {
    {SourceType::kF32, "F32", 1, 4},       {SourceType::kF16, "F16", 1, 2},
    {SourceType::kBF16, "BF16", 1, 2},     {SourceType::kQ4_0, "Q4_0", 32, 18},
    {SourceType::kQ4_1, "Q4_1", 32, 20},   {SourceType::kQ5_0, "Q5_0", 32, 22},
    {SourceType::kQ5_1, "Q5_1", 32, 24},   {SourceType::kQ8_0, "Q8_0", 32, 34},
    {SourceType::kQ4_K, "Q4_K", 256, 144}, {SourceType::kQ5_K, "Q5_K", 256, 176},
    {SourceType::kQ6_K, "Q6_K", 256, 210},
};

const TypeTraits& TraitsOf(SourceType type) {
  for (const TypeTraits& t : kTypes) {
    if (t.type == type) return t;
  }
  return kTypes[0];  // not reached: every enumerator is in the table
}

float LoadHalf(const std::byte* p) { return HalfToFloat(LoadLe<uint16_t>(p)); }

// The 32-element blocks. Byte j of the 16 packed bytes holds element j in its low nibble and
// element 16 + j in its high one; in Q5 bit i of a 32-bit word is the fifth bit of element i.
unsigned Nibble(const std::byte* packed, unsigned i) {
  const auto byte = static_cast<unsigned>(packed[i % 16]);
  return i < 16 ? byte & 15 : byte >> 4;
}

// {f16 d, nibbles}: d * (q - 8).
void DecodeQ4_0(const std::byte* block, float* dst) {
  const float d = LoadHalf(block);
  for (unsigned i = 0; i < 32; ++i) {
    dst[i] = d * static_cast<float>(static_cast<int>(Nibble(block + 2, i)) - 8);
  }
}

// {f16 d, f16 m, nibbles}: d * q + m.
void DecodeQ4_1(const std::byte* block, float* dst) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  for (unsigned i = 0; i < 32; ++i) {
    dst[i] = d * static_cast<float>(Nibble(block + 4, i)) + m;
  }
}

// {f16 d, u32 fifth bits, nibbles}: d * (q - 16).
void DecodeQ5_0(const std::byte* block, float* dst) {
  const float d = LoadHalf(block);
  const auto fifth = LoadLe<uint32_t>(block + 2);
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned q = Nibble(block + 6, i) | (fifth >> i & 1) << 4;
    dst[i] = d * static_cast<float>(static_cast<int>(q) - 16);
  }
}

// {f16 d, f16 m, u32 fifth bits, nibbles}: d * q + m.
void DecodeQ5_1(const std::byte* block, float* dst) {
  const float d = LoadHalf(block);
  const float m = LoadHalf(block + 2);
  const auto fifth = LoadLe<uint32_t>(block + 4);
  for (unsigned i = 0; i < 32; ++i) {
    const unsigned q = Nibble(block + 8, i) | (fifth >> i & 1) << 4;
    dst[i] = d * static_cast<float>(q) + m;
  }
}

// {f16 d, 32 int8}: d * q.
void DecodeQ8_0(const std::byte* block, float* dst) {
  const float d = LoadHalf(block);
  for (unsigned i = 0; i < 32; ++i)
    dst[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

void DecodeHalves(const std::byte* src, std::span<float> dst) {
  for (size_t i = 0; i < dst.size(); ++i) dst[i] = LoadHalf(src + 2 * i);
}

// bfloat16 is the upper half of a float.
void DecodeBf16(const std::byte* src, std::span<float> dst) {
  for (size_t i = 0; i < dst.size(); ++i) {
    const uint32_t bits = static_cast<uint32_t>(LoadLe<uint16_t>(src + 2 * i)) << 16;
    dst[i] = std::bit_cast<float>(bits);
  }
}

using BlockDecoder = void (*)(const std::byte* block, float* dst);

BlockDecoder DecoderOf(SourceType type) {
  switch (type) {
    case SourceType::kQ4_0:
      return DecodeQ4_0;
    case SourceType::kQ4_1:
      return DecodeQ4_1;
    case SourceType::kQ5_0:
      return DecodeQ5_0;
    case SourceType::kQ5_1:
      return DecodeQ5_1;
    case SourceType::kQ8_0:
      return DecodeQ8_0;
    case SourceType::kQ4_K:
      return DecodeQ4KBlock;
    case SourceType::kQ5_K:
      return DecodeQ5KBlock;
    case SourceType::kQ6_K:
      return DecodeQ6KBlock;
    case SourceType::kF32:
    case SourceType::kF16:
    case SourceType::kBF16:
      break;
  }
  return nullptr;
}

}  // namespace

std::optional<SourceType> SourceTypeFromGgufId(uint32_t id) {
  for (const TypeTraits& t : kTypes) {
    if (static_cast<uint32_t>(t.type) == id) return t.type;
  }
  return std::nullopt;
}

std::string_view SourceTypeName(SourceType type) { return TraitsOf(type).name; }
uint32_t BlockElements(SourceType type) { return TraitsOf(type).block_elements; }
uint32_t BlockBytes(SourceType type) { return TraitsOf(type).block_bytes; }

std::optional<uint64_t> SourceTensorBytes(SourceType type, std::span<const uint64_t> shape) {
  const uint64_t block = BlockElements(type);
  if (shape.empty() || shape.back() % block != 0) return std::nullopt;
  uint64_t bytes = BlockBytes(type);
  for (size_t i = 0; i < shape.size(); ++i) {
    const uint64_t factor = i + 1 < shape.size() ? shape[i] : shape[i] / block;
    if (factor == 0 || __builtin_mul_overflow(bytes, factor, &bytes)) return std::nullopt;
  }
  return bytes;
}

void DecodeSource(SourceType type, std::span<const std::byte> src, std::span<float> dst) {
  if (type == SourceType::kF32) {
    std::memcpy(dst.data(), src.data(), dst.size_bytes());
  } else if (type == SourceType::kF16) {
    DecodeHalves(src.data(), dst);
  } else if (type == SourceType::kBF16) {
    DecodeBf16(src.data(), dst);
  } else {
    const BlockDecoder decode = DecoderOf(type);
    const size_t elements = BlockElements(type);
    const size_t bytes = BlockBytes(type);
    for (size_t b = 0; b < dst.size() / elements; ++b) {
      decode(src.data() + b * bytes, dst.data() + b * elements);
    }
  }
}

}  // namespace sluice
