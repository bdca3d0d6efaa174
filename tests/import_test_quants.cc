// Decoders and encoders of source element types. The decoders are checked by packing known scales
// and quants, written here from the format's description in the other direction.
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/byte_io.h"
#include "layout/source_encode.h"
#include "layout/source_type.h"
#include "layout/weight_type.h"

namespace sluice {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr SourceType kAllTypes[] = {
    SourceType::kF32,  SourceType::kF16,  SourceType::kBF16, SourceType::kQ4_0,
    SourceType::kQ4_1, SourceType::kQ5_0, SourceType::kQ5_1, SourceType::kQ8_0,
    SourceType::kQ4_K, SourceType::kQ5_K, SourceType::kQ6_K,
};

// What a packed block holds, element by element, before it is packed.
struct Block {
  float d = 0.0f, m = 0.0f;                // as half floats can hold them
  std::vector<int> q;                      // unsigned as stored
  std::array<int, 16> scales{}, minima{};  // K formats
};

class BlockMaker {
 public:
  explicit BlockMaker(uint32_t seed) : rng_(seed) {}

  Block Make(size_t n, int q_max) {
    Block b;
    b.d = AnyHalf();
    b.m = AnyHalf();
    for (size_t i = 0; i < n; ++i) b.q.push_back(Int(0, q_max));
    return b;
  }
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(rng_); }
  float AnyHalf() { return HalfToFloat(FloatToHalf(std::normal_distribution<float>()(rng_))); }

 private:
  std::mt19937 rng_;
};

void PutHalf(ByteWriter& out, float f) { out.Put<uint16_t>(FloatToHalf(f)); }

// Nibbles of one 32-element block: element j and element j + 16 share byte j.
void PutNibbles(ByteWriter& out, const std::vector<int>& q) {
  for (size_t j = 0; j < 16; ++j) {
    out.Put<uint8_t>(static_cast<uint8_t>((q[j] & 15) | (q[j + 16] & 15) << 4));
  }
}

void PutFifthBits(ByteWriter& out, const std::vector<int>& q) {
  uint32_t bits = 0;
  for (size_t i = 0; i < 32; ++i) bits |= static_cast<uint32_t>(q[i] >> 4) << i;
  out.Put(bits);
}

// Q4_K and Q5_K scales: 8 pairs of 6-bit numbers in 12 bytes.
void PutSixBitPairs(ByteWriter& out, const Block& b) {
  uint8_t bytes[12] = {};
  for (size_t j = 0; j < 4; ++j) {
    bytes[j] = static_cast<uint8_t>(b.scales[j] | (b.scales[j + 4] >> 4) << 6);
    bytes[j + 4] = static_cast<uint8_t>(b.minima[j] | (b.minima[j + 4] >> 4) << 6);
    bytes[j + 8] = static_cast<uint8_t>((b.scales[j + 4] & 15) | (b.minima[j + 4] & 15) << 4);
  }
  out.PutBytes(bytes, sizeof(bytes));
}

// 64 elements in 32 bytes: the first 32 low, the others high.
void PutKNibbles(ByteWriter& out, const std::vector<int>& q) {
  for (size_t group = 0; group < 256; group += 64) {
    for (size_t j = 0; j < 32; ++j) {
      out.Put<uint8_t>(static_cast<uint8_t>((q[group + j] & 15) | (q[group + 32 + j] & 15) << 4));
    }
  }
}

std::vector<float> Decode(SourceType type, std::span<const std::byte> bytes) {
  std::vector<float> out(bytes.size() / BlockBytes(type) * BlockElements(type));
  DecodeSource(type, bytes, out);
  return out;
}

TEST(SourceTypeTest, EveryTypeIsFoundByItsGgufId) {
  for (const SourceType type : kAllTypes) {
    EXPECT_EQ(SourceTypeFromGgufId(static_cast<uint32_t>(type)), type);
  }
  EXPECT_EQ(SourceTypeFromGgufId(10), std::nullopt);
  EXPECT_EQ(SourceTypeFromGgufId(0xffffffff), std::nullopt);
}

TEST(SourceTypeTest, TensorBytesRefusesOverflowAndPartialBlocks) {
  using Shape = std::vector<uint64_t>;
  EXPECT_EQ(SourceTensorBytes(SourceType::kQ4_0, Shape{3, 64}), 3u * 2 * 18);
  EXPECT_EQ(SourceTensorBytes(SourceType::kF16, Shape{5}), 10u);
  EXPECT_EQ(SourceTensorBytes(SourceType::kQ4_0, Shape{64, 3}), std::nullopt);
  EXPECT_EQ(SourceTensorBytes(SourceType::kF32, Shape{}), std::nullopt);
  EXPECT_EQ(SourceTensorBytes(SourceType::kF32, Shape{4, 0}), std::nullopt);
  EXPECT_EQ(SourceTensorBytes(SourceType::kF32, Shape{1ull << 62}), std::nullopt);
  EXPECT_EQ(SourceTensorBytes(SourceType::kF32, Shape{1ull << 31, 1ull << 31, 2}), std::nullopt);
}

TEST(DecodeTest, PlainFloatsKeepEveryValue) {
  ByteWriter f32, f16, bf16;
  for (const float v : {1.5f, -0.0f, 65504.0f, 0x1p-24f}) f32.Put(v);
  for (const uint16_t v : {0x3e00, 0x8000, 0x7bff, 0x0001}) f16.Put<uint16_t>(v);
  for (const uint16_t v : {0x3fc0, 0x8000, 0x7f7f, 0x0001}) bf16.Put<uint16_t>(v);
  EXPECT_THAT(Decode(SourceType::kF32, f32.bytes()), ElementsAre(1.5f, -0.0f, 65504.0f, 0x1p-24f));
  EXPECT_THAT(Decode(SourceType::kF16, f16.bytes()), ElementsAre(1.5f, -0.0f, 65504.0f, 0x1p-24f));
  EXPECT_THAT(Decode(SourceType::kBF16, bf16.bytes()),
              ElementsAre(1.5f, -0.0f, 0x1.fep127f, 0x1p-133f));
}

TEST(DecodeTest, BlocksOf32GiveScaleTimesQuant) {
  BlockMaker maker(1);
  for (int round = 0; round < 50; ++round) {
    const Block four = maker.Make(32, 15);
    const Block five = maker.Make(32, 31);
    const Block eight = maker.Make(32, 255);
    ByteWriter q4_0, q4_1, q5_0, q5_1, q8_0;
    PutHalf(q4_0, four.d);
    PutNibbles(q4_0, four.q);
    PutHalf(q4_1, four.d);
    PutHalf(q4_1, four.m);
    PutNibbles(q4_1, four.q);
    PutHalf(q5_0, five.d);
    PutFifthBits(q5_0, five.q);
    PutNibbles(q5_0, five.q);
    PutHalf(q5_1, five.d);
    PutHalf(q5_1, five.m);
    PutFifthBits(q5_1, five.q);
    PutNibbles(q5_1, five.q);
    PutHalf(q8_0, eight.d);
    for (const int q : eight.q) q8_0.Put<int8_t>(static_cast<int8_t>(q - 128));
    const auto from_q4_0 = Decode(SourceType::kQ4_0, q4_0.bytes());
    const auto from_q4_1 = Decode(SourceType::kQ4_1, q4_1.bytes());
    const auto from_q5_0 = Decode(SourceType::kQ5_0, q5_0.bytes());
    const auto from_q5_1 = Decode(SourceType::kQ5_1, q5_1.bytes());
    const auto from_q8_0 = Decode(SourceType::kQ8_0, q8_0.bytes());
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(from_q4_0[i], four.d * static_cast<float>(four.q[i] - 8));
      EXPECT_EQ(from_q4_1[i], four.d * static_cast<float>(four.q[i]) + four.m);
      EXPECT_EQ(from_q5_0[i], five.d * static_cast<float>(five.q[i] - 16));
      EXPECT_EQ(from_q5_1[i], five.d * static_cast<float>(five.q[i]) + five.m);
      EXPECT_EQ(from_q8_0[i], eight.d * static_cast<float>(eight.q[i] - 128));
    }
  }
}

TEST(DecodeTest, FourAndFiveBitSuperBlocksUseTheirSubBlockScaleAndMinimum) {
  BlockMaker maker(2);
  for (int round = 0; round < 50; ++round) {
    for (const SourceType type : {SourceType::kQ4_K, SourceType::kQ5_K}) {
      Block b = maker.Make(256, type == SourceType::kQ4_K ? 15 : 31);
      for (size_t s = 0; s < 8; ++s) {
        b.scales[s] = maker.Int(0, 63);
        b.minima[s] = maker.Int(0, 63);
      }
      ByteWriter out;
      PutHalf(out, b.d);
      PutHalf(out, b.m);
      PutSixBitPairs(out, b);
      if (type == SourceType::kQ5_K) {
        for (size_t j = 0; j < 32; ++j) {
          int bits = 0;
          for (size_t s = 0; s < 8; ++s) bits |= (b.q[s * 32 + j] >> 4) << s;
          out.Put<uint8_t>(static_cast<uint8_t>(bits));
        }
      }
      PutKNibbles(out, b.q);
      ASSERT_EQ(out.bytes().size(), BlockBytes(type));
      const auto decoded = Decode(type, out.bytes());
      for (size_t i = 0; i < 256; ++i) {
        const auto scale = static_cast<float>(b.scales[i / 32]);
        const auto min = static_cast<float>(b.minima[i / 32]);
        ASSERT_EQ(decoded[i], b.d * scale * static_cast<float>(b.q[i]) - b.m * min)
            << SourceTypeName(type) << " element " << i;
      }
    }
  }
}

TEST(DecodeTest, SixBitSuperBlocksUseASignedScaleForEach16Elements) {
  BlockMaker maker(3);
  for (int round = 0; round < 50; ++round) {
    Block b = maker.Make(256, 63);
    for (int& s : b.scales) s = maker.Int(-128, 127);
    uint8_t low[128] = {}, high[64] = {};
    for (size_t i = 0; i < 256; ++i) {
      const size_t half = i / 128, run = i % 128 / 32, j = i % 32;
      low[half * 64 + run % 2 * 32 + j] |=
          static_cast<uint8_t>((b.q[i] & 15) << (run >= 2 ? 4 : 0));
      high[half * 32 + j] |= static_cast<uint8_t>((b.q[i] >> 4) << (2 * run));
    }
    ByteWriter out;
    out.PutBytes(low, sizeof(low));
    out.PutBytes(high, sizeof(high));
    for (const int s : b.scales) out.Put<int8_t>(static_cast<int8_t>(s));
    PutHalf(out, b.d);
    const auto decoded = Decode(SourceType::kQ6_K, out.bytes());
    for (size_t i = 0; i < 256; ++i) {
      const auto scale = static_cast<float>(b.scales[i / 16]);
      ASSERT_EQ(decoded[i], b.d * scale * static_cast<float>(b.q[i] - 32)) << "element " << i;
    }
  }
}

// Each block decodes from its own bytes only: decoding two together is decoding each alone.
TEST(DecodeTest, AnyBytesDecodeAndBlocksAreIndependent) {
  std::mt19937 rng(4);
  for (const SourceType type : kAllTypes) {
    const size_t bytes = BlockBytes(type);
    std::vector<std::byte> two(2 * bytes);
    for (std::byte& b : two) b = static_cast<std::byte>(rng());
    const auto both = Decode(type, two);
    const auto second = Decode(type, std::span(two).subspan(bytes));
    ASSERT_EQ(both.size(), 2 * BlockElements(type));
    for (size_t i = 0; i < second.size(); ++i) {
      EXPECT_EQ(std::bit_cast<uint32_t>(both[second.size() + i]),
                std::bit_cast<uint32_t>(second[i]));
    }
  }
}

TEST(DecodeTest, ExtremeBlocksStayExact) {
  const std::vector<std::byte> zeros(256, std::byte{0});
  for (const SourceType type : kAllTypes) {
    EXPECT_THAT(Decode(type, std::span(zeros).first(BlockBytes(type))), Each(0.0f))
        << SourceTypeName(type);
  }
  // The largest finite scale with the largest quants.
  std::vector<std::byte> ones(BlockBytes(SourceType::kQ4_K), std::byte{0xff});
  StoreLe<uint16_t>(ones.data(), 0x7bff);
  StoreLe<uint16_t>(ones.data() + 2, 0);
  EXPECT_THAT(Decode(SourceType::kQ4_K, ones), Each(65504.0f * 63 * 15));
}

std::vector<float> RandomFloats(size_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

std::vector<std::byte> Encode(SourceType type, std::span<const float> values) {
  std::vector<std::byte> out(values.size() / BlockElements(type) * BlockBytes(type));
  EncodeSource(type, values, out);
  return out;
}

TEST(EncodeTest, ErrorStaysWithinHalfAStep) {
  const auto values = RandomFloats(32 * 64, 5);
  const auto q8 = Decode(SourceType::kQ8_0, Encode(SourceType::kQ8_0, values));
  const auto q4 = Decode(SourceType::kQ4_0, Encode(SourceType::kQ4_0, values));
  for (size_t b = 0; b < values.size(); b += 32) {
    float largest = 0.0f;
    for (size_t i = b; i < b + 32; ++i) largest = std::max(largest, std::fabs(values[i]));
    for (size_t i = b; i < b + 32; ++i) {
      // Half a step, and what rounding the scale to a half float adds.
      EXPECT_NEAR(q8[i], values[i], largest * (0.5f / 127 + 0x1p-11f));
      // A value opposite to the extreme one may lie a whole step beyond the largest nibble.
      EXPECT_NEAR(q4[i], values[i], largest * (1.0f / 8 + 0x1p-11f));
    }
  }
}

TEST(EncodeTest, EncodingWhatWasDecodedLosesNothing) {
  for (const SourceType type :
       {SourceType::kF32, SourceType::kF16, SourceType::kQ4_0, SourceType::kQ8_0}) {
    ASSERT_TRUE(CanEncodeSource(type));
    const auto first = Decode(type, Encode(type, RandomFloats(32 * 64, 6)));
    EXPECT_EQ(Decode(type, Encode(type, first)), first) << SourceTypeName(type);
  }
  EXPECT_FALSE(CanEncodeSource(SourceType::kQ4_K));
}

TEST(EncodeTest, ZeroAndTinyBlocksStayFinite) {
  for (const float v : {0.0f, 1e-30f, -1e-38f, std::numeric_limits<float>::denorm_min()}) {
    const std::vector<float> values(32, v);
    EXPECT_THAT(Decode(SourceType::kQ4_0, Encode(SourceType::kQ4_0, values)), Each(0.0f));
    EXPECT_THAT(Decode(SourceType::kQ8_0, Encode(SourceType::kQ8_0, values)), Each(0.0f));
  }
}

TEST(EncodeTest, LargestMagnitudeIsExact) {
  std::vector<float> values(32, 0.25f);
  values[7] = -4.0f;
  EXPECT_EQ(Decode(SourceType::kQ4_0, Encode(SourceType::kQ4_0, values))[7], -4.0f);
  values[7] = 4.0f;
  EXPECT_EQ(Decode(SourceType::kQ4_0, Encode(SourceType::kQ4_0, values))[7], 4.0f);
}

}  // namespace
}  // namespace sluice
