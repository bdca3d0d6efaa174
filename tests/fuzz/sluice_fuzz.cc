// A `.sluice` file with edits that the input spells out, all checksums made right again, so that
// the edits reach the parsers behind them: open it, load the tokenizer, use every accessor, and see
// that every region that the directory promises lies inside the file.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "layout/sluice_file.h"
#include "tests/fuzz/memory_file.h"
#include "tests/sluice_image.h"
#include "tests/test_paths.h"
#include "tests/tiny_sluice.h"

namespace sluice {
namespace {

constexpr int kMaxEdits = 16;
constexpr size_t kHeaderFields = 80;  // zeros from here to the checksum

SluiceImage MakeImage(const TinySluice& model) {
  const TempDir dir;
  const std::string path = dir.File("good.sluice");
  if (!WriteTinySluice(model, path).ok()) std::abort();
  SluiceImage loaded = SluiceImage::Load(path);
  loaded.DropWeights();
  return loaded;
}

// With all that a model of the Llama family may have, with exact zeros or thresholds, or a
// relative.
constexpr size_t kImages = 3;
const SluiceImage& GoodImage(size_t i) {
  static const SluiceImage images[kImages] = {MakeImage(MakeTinyHeadPredicted(WeightType::kQ4)),
                                              MakeImage(MakeTinyRelative(WeightType::kQ4)),
                                              MakeImage(MakeTinyThresholded(WeightType::kQ4))};
  return images[i];
}

std::byte ConsumeByte(FuzzedDataProvider& input) {
  return static_cast<std::byte>(input.ConsumeIntegral<uint8_t>());
}

// Of a section that is there.
SectionKind ConsumeKind(FuzzedDataProvider& input, const SluiceImage& image) {
  const auto i = input.ConsumeIntegralInRange<size_t>(0, image.entries.size() - 1);
  return static_cast<SectionKind>(image.entries[i].kind);
}

// Overwrites, cuts, lengthens or replaces the contents of a section.
void EditSection(FuzzedDataProvider& input, SluiceImage& image) {
  const SectionKind kind = ConsumeKind(input, image);
  std::vector<std::byte> raw = image.ReadSection(kind);
  const auto at = input.ConsumeIntegralInRange<size_t>(0, raw.size());
  switch (input.ConsumeIntegralInRange(0, 3)) {
    case 0:
      for (size_t i = at, n = input.ConsumeIntegralInRange<size_t>(1, 8); n > 0; --n, ++i) {
        if (i < raw.size()) raw[i] = ConsumeByte(input);
      }
      break;
    case 1:
      raw.resize(at);
      break;
    case 2:
      raw.insert(raw.begin() + static_cast<ptrdiff_t>(at),
                 input.ConsumeIntegralInRange<size_t>(1, 64), ConsumeByte(input));
      break;
    default:
      raw = input.ConsumeBytes<std::byte>(input.ConsumeIntegralInRange<size_t>(0, 4096));
  }
  image.ReplaceSection(kind, raw);
}

void EditTable(FuzzedDataProvider& input, SluiceImage& image) {
  SluiceImage::Entry& e =
      image.entries[input.ConsumeIntegralInRange<size_t>(0, image.entries.size() - 1)];
  switch (input.ConsumeIntegralInRange(0, 4)) {
    case 0:
      e.kind = input.ConsumeIntegralInRange<uint32_t>(0, kSectionKinds + 1);
      break;
    case 1:
      e.offset = input.ConsumeIntegral<uint64_t>();
      break;
    case 2:
      e.stored_bytes = input.ConsumeIntegral<uint64_t>();
      break;
    case 3:
      e.raw_bytes = input.ConsumeIntegral<uint64_t>();
      break;
    default:
      image.entries.push_back(e);
  }
}

// Bytes that are not what zstd wrote.
void EditStored(FuzzedDataProvider& input, SluiceImage& image) {
  const SectionKind kind = ConsumeKind(input, image);
  const auto stored = input.ConsumeBytes<std::byte>(input.ConsumeIntegralInRange<size_t>(0, 256));
  image.ReplaceStored(kind, stored, input.ConsumeIntegralInRange<uint64_t>(0, 1 << 20));
}

SluiceImage EditedImage(FuzzedDataProvider& input) {
  SluiceImage image = GoodImage(input.ConsumeIntegralInRange<size_t>(0, kImages - 1));
  // Sections first: an edited table may not lead to them any more.
  for (int n = input.ConsumeIntegralInRange(0, kMaxEdits); n > 0; --n) EditSection(input, image);
  for (int n = input.ConsumeIntegralInRange(0, 2); n > 0; --n) EditStored(input, image);
  for (int n = input.ConsumeIntegralInRange(0, 4); n > 0; --n) EditTable(input, image);
  image.Seal();
  for (int n = input.ConsumeIntegralInRange(0, 4); n > 0; --n) {
    image.bytes[input.ConsumeIntegralInRange<size_t>(8, kHeaderFields)] = ConsumeByte(input);
  }
  image.SealHeader();
  return image;
}

// A region that the reader has accepted must lie in the file.
void CheckRegion(const SluiceFile& file, uint64_t offset, uint64_t size) {
  if (offset > file.file_size() || size > file.file_size() - offset) std::abort();
}

void UseRegions(const SluiceFile& file) {
  for (uint32_t i = 0; i < file.directory().matrices.size(); ++i) {
    const MatrixEntry& m = file.matrix(i);
    const uint32_t t = m.n_tiles() - 1;
    CheckRegion(file, m.offset, m.n_bytes());
    file.TileIsIntact(i, t, std::vector<std::byte>(m.rows_in_tile(t) * m.row_bytes()));
    if (file.MatrixIndex(m.role, m.layer) != i) std::abort();
  }
  const BundleLayout& b = file.bundles();
  for (uint32_t l = 0; l < file.config().n_layers; ++l) {
    for (const uint32_t p : {0u, b.d_ff / 2, b.d_ff - 1}) {
      if (file.NeuronAt(l, p) >= b.d_ff) std::abort();
      CheckRegion(file, b.BundleOffset(l, p), b.payload_bytes());
      file.BundleIsIntact(l, p, std::vector<std::byte>(b.payload_bytes()));
    }
  }
}

// Sums what the accessors give, so that every element is read.
float UseVectors(const SluiceFile& file) {
  float sum = 0;
  const auto add = [&sum](std::span<const float> v) {
    for (const float x : v) sum += x;
  };
  for (uint32_t l = 0; l < file.config().n_layers; ++l) {
    for (size_t v = 0; v < kLayerVectors; ++v) add(file.vector(static_cast<LayerVector>(v), l));
  }
  add(file.output_norm());
  add(file.output_norm_bias());
  add(file.thresholds());
  // What decides by them takes one for each layer.
  if (!file.thresholds().empty() && file.thresholds().size() != file.config().n_layers) {
    std::abort();
  }
  add(file.rope_divisors());
  add(file.learned_position(0));
  add(file.learned_position(file.config().context_length - 1));
  return sum;
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  const sluice::SluiceImage image = sluice::EditedImage(input);
  // Written through the name of a memory file, so that the hole takes no memory.
  const sluice::MemoryFile memory(data, 0);
  image.Write(memory.path());
  const auto file = sluice::SluiceFile::Open(memory.path());
  if (!file.ok()) return 0;
  sluice::UseRegions(**file);
  volatile float sum = sluice::UseVectors(**file);
  static_cast<void>(sum);
  (*file)->LoadTokenizer().status().IgnoreError();
  return 0;
}
