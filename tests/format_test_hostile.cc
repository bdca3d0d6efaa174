// Files whose checksums are all right and whose values are not: made to break a reader. Each is
// refused quickly, without memory that the file has no right to, by an error that names the file
// and the field.
#include <cstring>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/sluice_file.h"
#include "tests/cost_bound.h"
#include "tests/format_test_files.h"

namespace sluice {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

using Edit = std::function<void(SluiceImage&)>;

struct Hostile {
  const char* name;
  Edit edit;
  const char* message;
};
void PrintTo(const Hostile& hostile, std::ostream* out) { *out << hostile.name; }

Edit EditDirectory(std::function<void(Directory&)> edit) {
  return [edit = std::move(edit)](SluiceImage& image) { EditDirectoryOf(image, edit); };
}
Edit EditBundles(std::function<void(BundleLayout&)> edit) {
  return EditDirectory([edit = std::move(edit)](Directory& d) { edit(d.bundles); });
}
// Matrix 0 is the embedding, 2 is K of layer 0.
Edit EditMatrix(uint32_t index, std::function<void(MatrixEntry&)> edit) {
  return EditDirectory([index, edit = std::move(edit)](Directory& d) { edit(d.matrices[index]); });
}
Edit EditConfig(std::function<void(ModelConfig&)> edit) {
  return [edit = std::move(edit)](SluiceImage& image) {
    const auto raw = image.ReadSection(SectionKind::kConfig);
    ByteReader reader(raw);
    ModelConfig config = ReadConfig(reader).value();
    edit(config);
    ByteWriter out;
    WriteConfig(config, out);
    image.ReplaceSection(SectionKind::kConfig, out.bytes());
  };
}
Edit EditRaw(SectionKind kind, std::function<void(std::vector<std::byte>&)> edit) {
  return [kind, edit = std::move(edit)](SluiceImage& image) {
    auto raw = image.ReadSection(kind);
    edit(raw);
    image.ReplaceSection(kind, raw);
  };
}
Edit EditEntry(SectionKind kind, std::function<void(SluiceImage::Entry&)> edit) {
  return [kind, edit = std::move(edit)](SluiceImage& image) { edit(image.entry(kind)); };
}
template <typename T>
Edit StoreIn(SectionKind kind, size_t at, T value) {
  return EditRaw(kind, [=](std::vector<std::byte>& raw) { StoreLe<T>(&raw[at], value); });
}

constexpr auto kDirectory = SectionKind::kDirectory;
constexpr auto kConfig = SectionKind::kConfig;
constexpr uint64_t kPetabyte = uint64_t{1} << 50;

// Offsets in a directory record: version 0, type 4, block 5, stride 9, bundles a blob 13, width 17,
// FFN 21, blob bytes 25, count of layers 33.
std::vector<Hostile> HostileBundles() {
  return {
      {"StrideZero", EditBundles([](auto& b) { b.stride = 0; }), "bundle stride 0"},
      {"StrideHuge", EditBundles([](auto& b) { b.stride = 0xfffffe00; }), "bundle stride"},
      {"StrideUnaligned", EditBundles([](auto& b) { b.stride += 1; }), "bundle stride"},
      {"BlockZero", EditBundles([](auto& b) { b.block = 0; }), "block size 0"},
      {"BlockNoPowerOfTwo", EditBundles([](auto& b) { b.block = 1536; }), "block size 1536"},
      {"BlockTooLarge", EditBundles([](auto& b) { b.block = 1u << 31; }), "block size 2147483648"},
      {"NoBundlesInABlob", EditBundles([](auto& b) { b.bundles_per_blob = 0; }), "with 0 bundles"},
      {"TooManyBundlesInABlob", EditBundles([](auto& b) { b.bundles_per_blob = UINT32_MAX; }),
       "with 4294967295 bundles"},
      {"BlobZero", EditBundles([](auto& b) { b.blob_bytes = 0; }), "blobs of 0 bytes"},
      {"BlobUnaligned", EditBundles([](auto& b) { b.blob_bytes += 4096; }), "blobs of"},
      {"BlobHuge", EditBundles([](auto& b) { b.blob_bytes = uint64_t{1} << 63; }), "blobs of"},
      {"LayerUnaligned", EditBundles([](auto& b) { b.layer_offsets[1] += 512; }),
       "not 512 KiB-aligned"},
      {"LayerBeyondTheFile", EditBundles([](auto& b) { b.layer_offsets[1] = kPetabyte; }),
       "blobs of layer 1 ends at"},
      {"LayerBeyond63Bits", EditBundles([](auto& b) { b.layer_offsets[0] = ~uint64_t{0} << 19; }),
       "wild offset"},
      {"LayersOverlap", EditBundles([](auto& b) { b.layer_offsets[1] = b.layer_offsets[0]; }),
       "inside"},
      {"LayerInsideTheHeader", EditBundles([](auto& b) { b.layer_offsets[0] = 0; }),
       "inside the header"},
      {"TooFewLayers", EditBundles([](auto& b) { b.layer_offsets.pop_back(); }),
       "bundles of 1 layers"},
      {"LayerCountAbsurd", StoreIn<uint32_t>(kDirectory, 33, UINT32_MAX), "cut short"},
      {"WidthOfAnotherModel", EditBundles([](auto& b) { b.d_model = 128; }), "width 128"},
      {"FfnOfAnotherModel", EditBundles([](auto& b) { b.d_ff = 1u << 31; }), "FFN 2147483648"},
      {"BundleTypeUnknown", StoreIn<uint8_t>(kDirectory, 4, 255), "type 255"},
  };
}

std::vector<Hostile> HostileMatrices() {
  return {
      {"MatrixTypeUnknown", EditMatrix(2, [](auto& m) { m.type = static_cast<WeightType>(255); }),
       "type 255"},
      {"MatrixTypeOfAnotherSize", EditMatrix(0, [](auto& m) { m.type = WeightType::kF32; }),
       "matrix embedding"},
      {"RoleUnknown", EditMatrix(2, [](auto& m) { m.role = static_cast<MatrixRole>(200); }),
       "role 200"},
      {"RolesSwapped", EditDirectory([](auto& d) { std::swap(d.matrices[1], d.matrices[2]); }),
       "matrix q of layer 0"},
      {"RowsAbsurd", EditMatrix(0, [](auto& m) { m.rows = UINT32_MAX; }), "matrix embedding"},
      {"ColumnsZero", EditMatrix(0, [](auto& m) { m.columns = 0; }), "matrix embedding"},
      {"MatrixOfAnotherLayer", EditMatrix(2, [](auto& m) { m.layer = 1; }), "matrix k of layer 0"},
      {"NoRowsInATile", EditMatrix(2, [](auto& m) { m.rows_per_tile = 0; }), "tiles of 0 rows"},
      {"TooManyRowsInATile", EditMatrix(2, [](auto& m) { m.rows_per_tile = UINT32_MAX; }),
       "tiles of 4294967295 rows"},
      {"TileStrideZero", EditMatrix(2, [](auto& m) { m.tile_stride = 0; }), "stride of 0 bytes"},
      {"TileStrideHuge", EditMatrix(2, [](auto& m) { m.tile_stride = 0xfffff000; }), "matrix k"},
      {"MatrixUnaligned", EditMatrix(2, [](auto& m) { m.offset += 1; }), "matrix k of layer 0"},
      {"MatrixInsideTheHeader", EditMatrix(0, [](auto& m) { m.offset = 0; }), "inside the header"},
      {"MatrixBeyondTheFile", EditMatrix(2, [](auto& m) { m.offset = kPetabyte; }),
       "matrix k of layer 0 ends at"},
      {"MatrixBeyond63Bits", EditMatrix(2, [](auto& m) { m.offset = UINT64_MAX - 511; }),
       "wild offset"},
      {"MatrixOnMatrix",
       EditDirectory([](auto& d) { d.matrices[3].offset = d.matrices[2].offset; }), "inside"},
      {"MatrixOnBlobs",
       EditDirectory([](auto& d) { d.matrices[0].offset = d.bundles.layer_offsets[0]; }), "inside"},
      {"NoMatrices", EditDirectory([](auto& d) { d.matrices.clear(); }), "has 0 matrices"},
      {"OneMatrixMore", EditDirectory([](auto& d) { d.matrices.push_back(d.matrices[0]); }),
       "matrices; the config asks for"},
      {"MatrixCountAbsurd", StoreIn<uint32_t>(kDirectory, 37 + 16, UINT32_MAX), "cut short"},
      {"DirectoryEmpty", EditRaw(kDirectory, [](auto& raw) { raw.clear(); }), "directory record"},
      {"DirectoryHalf", EditRaw(kDirectory, [](auto& raw) { raw.resize(raw.size() / 2); }),
       "directory record is cut short"},
      {"DirectoryOfAnotherVersion", StoreIn<uint32_t>(kDirectory, 0, 77), "directory record"},
  };
}

std::vector<Hostile> HostileConfigs() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  return {
      {"NoLayers", EditConfig([](auto& c) { c.n_layers = 0; }), "layer count is 0"},
      {"LayersAbsurd", EditConfig([](auto& c) { c.n_layers = UINT32_MAX; }), "layer count"},
      {"MoreLayersThanStored", EditConfig([](auto& c) { c.n_layers = 1024; }), "2 layers"},
      {"WidthZero", EditConfig([](auto& c) { c.d_model = 0; }), "model width is 0"},
      {"WidthNoMultiple", EditConfig([](auto& c) { c.d_model = 65; }), "model width 65"},
      {"FfnAbsurd", EditConfig([](auto& c) { c.d_ff = UINT32_MAX; }), "FFN width"},
      {"NoHeads", EditConfig([](auto& c) { c.n_heads = 0; }), "head count is 0"},
      {"NoKvHeads", EditConfig([](auto& c) { c.n_kv_heads = 0; }), "KV head count is 0"},
      {"HeadsNoMultiple", EditConfig([](auto& c) { c.n_kv_heads = 3; }), "KV head count 3"},
      {"HeadDimensionOdd", EditConfig([](auto& c) { c.head_dim = 15; }), "head dimension 15"},
      {"NoVocabulary", EditConfig([](auto& c) { c.vocab_size = 0; }), "vocabulary size is 0"},
      {"OtherVocabulary", EditConfig([](auto& c) { c.vocab_size = 41; }), "matrix embedding"},
      {"ContextZero", EditConfig([](auto& c) { c.context_length = 0; }), "context length is 0"},
      {"EpsilonNan", EditConfig([](auto& c) { c.norm_epsilon = kNan; }), "norm epsilon"},
      {"RopeBaseInfinite",
       EditConfig([](auto& c) { c.rope_base = std::numeric_limits<float>::infinity(); }),
       "RoPE base"},
      {"ThresholdNan", EditConfig([](auto& c) { c.activation_threshold = kNan; }),
       "activation threshold"},
      {"ActivationUnknown", EditConfig([](auto& c) { c.activation = static_cast<Activation>(99); }),
       "unknown activation"},
      {"NormUnknown", EditConfig([](auto& c) { c.norm = static_cast<NormKind>(2); }),
       "unknown norm"},
      {"UnrotatedOdd", EditConfig([](auto& c) { c.unrotated = 3; }), "RoPE leaves 3 of the 16"},
      {"UnrotatedAbsurd", EditConfig([](auto& c) { c.unrotated = UINT32_MAX - 1; }),
       "RoPE leaves 4294967294"},
      {"FfnBiasesBesideAGate", EditConfig([](auto& c) { c.ffn_bias = true; }), "gated FFN"},
      {"LearnedPositionsAbsurd", EditConfig([](auto& c) {
         c.learned_positions = true;
         c.context_length = 1u << 27;
       }),
       "learned positions"},
      {"VectorsOfAPlainModel", EditConfig([](auto& c) { c.norm = NormKind::kLayer; }),
       "vectors section has"},
      {"NameAbsurd", StoreIn<uint32_t>(kConfig, 4, UINT32_MAX), "config record is cut short"},
      {"ConfigOfAnotherVersion", StoreIn<uint32_t>(kConfig, 0, 2), "config record has version 2"},
      {"ProvenanceCutShort", EditRaw(SectionKind::kProvenance, [](auto& raw) { raw.resize(10); }),
       "provenance record is cut short"},
  };
}

std::vector<std::byte> Zeros(size_t n) { return std::vector<std::byte>(n); }

std::vector<Hostile> HostileSections() {
  return {
      {"NeuronTwice",
       EditRaw(SectionKind::kBundleSums,
               [](auto& raw) { StoreLe<uint32_t>(&raw[0], LoadLe<uint32_t>(&raw[4])); }),
       "neuron order of layer 0 is not a permutation"},
      {"NeuronAbsurd", StoreIn<uint32_t>(SectionKind::kBundleSums, 96 * 8 + 4, UINT32_MAX),
       "neuron order of layer 1 is not a permutation"},
      {"TileChecksumsShort",
       EditRaw(SectionKind::kTileSums, [](auto& raw) { raw.resize(raw.size() - 4); }),
       "tile checksums section has"},
      {"BundleChecksumsLong",
       EditRaw(SectionKind::kBundleSums, [](auto& raw) { raw.resize(raw.size() + 4); }),
       "bundle checksums section claims"},
      {"VectorsShort", EditRaw(SectionKind::kVectors, [](auto& raw) { raw.resize(4); }),
       "vectors section has 4 bytes"},
      {"ClaimOfAPetabyte",
       EditEntry(SectionKind::kVectors, [](auto& e) { e.raw_bytes = kPetabyte; }),
       "vectors section claims"},
      {"ClaimOf64Bits", EditEntry(kDirectory, [](auto& e) { e.raw_bytes = UINT64_MAX; }),
       "directory section claims"},
      {"ClaimOfNothing", EditEntry(kConfig, [](auto& e) { e.raw_bytes = 0; }), "config section"},
      {"ClaimOfOneByteLess", EditEntry(kConfig, [](auto& e) { --e.raw_bytes; }),
       "config section has another size than it claims"},
      {"BombOf64MiB", [](SluiceImage& image) { image.ReplaceSection(kDirectory, Zeros(64 << 20)); },
       "directory section claims"},
      {"BombThatClaimsLittle",
       [](SluiceImage& image) {
         image.ReplaceSection(kConfig, Zeros(64 << 20));
         image.entry(kConfig).raw_bytes = 1000;
       },
       "config section"},
      {"NotCompressed", [](SluiceImage& image) { image.ReplaceStored(kConfig, Zeros(64), 64); },
       "config section has another size than it claims"},
      {"StoredNothing", [](SluiceImage& image) { image.ReplaceStored(kConfig, {}, 64); },
       "config section"},
      {"SectionBeyondTheFile",
       EditEntry(SectionKind::kTileSums, [](auto& e) { e.offset = kPetabyte; }),
       "tile checksums section is outside the file"},
      {"SectionLongerThanTheFile",
       EditEntry(SectionKind::kTokenizer, [](auto& e) { e.stored_bytes = UINT64_MAX; }),
       "tokenizer section is outside the file"},
      {"TooManySections", [](SluiceImage& image) { image.entries.resize(65, {1000}); },
       "section table of 65 entries"},
  };
}

std::vector<Hostile> AllHostile() {
  std::vector<Hostile> all;
  for (auto list : {HostileBundles(), HostileMatrices(), HostileConfigs(), HostileSections()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

class HostileFileTest : public TinyFileTest, public testing::WithParamInterface<Hostile> {};

TEST_P(HostileFileTest, IsRefusedQuicklyAndNamed) {
  SluiceImage image = SluiceImage::Load(path_);
  GetParam().edit(image);
  image.Seal();
  image.Write(path_);
  const CostBound bound;
  const auto file = SluiceFile::Open(path_);
  ASSERT_FALSE(file.ok());
  EXPECT_THAT(std::string(file.status().message()), StartsWith(path_));
  EXPECT_THAT(std::string(file.status().message()), HasSubstr(GetParam().message));
}

INSTANTIATE_TEST_SUITE_P(Fields, HostileFileTest, testing::ValuesIn(AllHostile()),
                         [](const auto& param) { return std::string(param.param.name); });

// The header's own fields: they can only be wrong after Seal has made them right.
TEST_F(TinyFileTest, ASectionTableOutsideTheFileIsRefused) {
  SluiceImage image = SluiceImage::Load(path_);
  const auto good = image;
  const auto refuse = [&](size_t at, uint64_t value, size_t bytes) {
    image = good;
    std::memcpy(&image.bytes[at], &value, bytes);
    image.SealHeader();
    image.Write(path_);
    const auto file = SluiceFile::Open(path_);
    EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("section table"));
  };
  refuse(40, UINT64_MAX, 8);
  refuse(40, good.bytes.size(), 8);
  refuse(40, good.bytes.size() - 39, 8);
  refuse(48, UINT32_MAX, 4);
  refuse(48, 8, 4);
}

TEST_F(TinyFileTest, EveryCutOfEveryRecordIsRefused) {
  const SluiceImage good = SluiceImage::Load(path_);
  for (const SectionKind kind :
       {SectionKind::kConfig, SectionKind::kDirectory, SectionKind::kProvenance}) {
    SluiceImage source = good;
    const auto raw = source.ReadSection(kind);
    for (size_t n = 0; n < raw.size(); n += 7) {
      // Without its window the config is one of format 1.0, which reads.
      if (kind == SectionKind::kConfig && n == raw.size() - sizeof(uint32_t)) continue;
      SluiceImage image = good;
      image.ReplaceSection(kind, std::span(raw).first(n));
      image.Seal();
      image.Write(path_);
      ASSERT_FALSE(SluiceFile::Open(path_).ok()) << static_cast<int>(kind) << " cut at " << n;
    }
  }
}

TEST_F(TinyFileTest, ATokenizerOfAnotherVocabularyIsRefused) {
  SluiceImage image = SluiceImage::Load(path_);
  TokenizerData data = model_.tokenizer;
  data.tokens.push_back("one more");
  data.types.push_back(TokenType::kNormal);
  data.scores.push_back(0);
  ByteWriter out;
  WriteTokenizer(data, out);
  image.ReplaceSection(SectionKind::kTokenizer, out.bytes());
  image.Seal();
  image.Write(path_);
  const auto file = SluiceFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const auto loaded = (*file)->LoadTokenizer();
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(loaded.status().message()), StartsWith(path_));
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("41 tokens, the model 40"));
}

class HostileTokenizerTest : public TinyFileTest {
 protected:
  // Stores the record that `write` puts down, after the fields up to the flags of a valid one, and
  // expects that loading it is refused.
  void ExpectRefused(const std::function<void(ByteWriter&)>& write, const std::string& what) {
    ByteWriter out;
    out.Put<uint32_t>(1);  // version
    out.Put<uint8_t>(1);   // byte-level BPE
    out.PutBytes(std::string(5, '\0').data(), 5);
    for (int i = 0; i < 4; ++i) out.Put<int32_t>(kNoToken);
    write(out);
    SluiceImage image = SluiceImage::Load(path_);
    image.ReplaceSection(SectionKind::kTokenizer, out.bytes());
    image.Seal();
    image.Write(path_);
    const CostBound bound;
    const auto file = SluiceFile::Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    const absl::Status status = (*file)->LoadTokenizer().status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(path_));
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  // The 40 tokens that the model has.
  static void PutTokens(ByteWriter& out) {
    out.Put<uint32_t>(40);
    for (int i = 0; i < 40; ++i) out.PutString("a");
    for (int i = 0; i < 40; ++i) out.Put<uint8_t>(1);
  }
  static constexpr uint32_t kMany = 3 << 20;
};

TEST_F(HostileTokenizerTest, MillionsOfEmptyTokensTakeNoMemory) {
  ExpectRefused(
      [](ByteWriter& out) {
        out.Put<uint32_t>(0);
        out.Put<uint32_t>(kMany);
        for (uint32_t i = 0; i < kMany; ++i) out.PutString("");
      },
      "tokens; at most");
}

TEST_F(HostileTokenizerTest, MillionsOfMergesTakeNoMemory) {
  ExpectRefused(
      [](ByteWriter& out) {
        out.Put<uint32_t>(0);
        PutTokens(out);
        out.Put<uint32_t>(kMany / 2);
        for (uint32_t i = 0; i < kMany / 2; ++i) out.PutString("a a");
      },
      "merges; at most 320");
}

TEST_F(HostileTokenizerTest, MillionsOfEndIdsTakeNoMemory) {
  ExpectRefused(
      [](ByteWriter& out) {
        out.Put<uint32_t>(kMany);
        for (uint32_t i = 0; i < kMany; ++i) out.Put<int32_t>(1);
      },
      "end ids; at most 64");
}

TEST_F(HostileTokenizerTest, ALongTokenIsRefusedBeforeItIsCopied) {
  ExpectRefused(
      [](ByteWriter& out) {
        out.Put<uint32_t>(0);
        out.Put<uint32_t>(40);
        for (int i = 0; i < 40; ++i) out.PutString(std::string(300'000, 'a'));
      },
      "a string has 300000 bytes");
}

TEST_F(HostileTokenizerTest, ARecordBeyondTheCapIsRefusedUnread) {
  ExpectRefused([](ByteWriter& out) { out.PutBytes(std::string(32 << 20, 'a').data(), 32 << 20); },
                "tokenizer section claims");
}

}  // namespace
}  // namespace sluice
