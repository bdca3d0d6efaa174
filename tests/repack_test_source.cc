#include "tests/repack_test_source.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "io/status.h"
#include "layout/byte_io.h"
#include "layout/weight_type.h"

namespace sluice {
namespace {

// Where a block holds half floats, which random bits would make infinite.
std::vector<size_t> HalfOffsets(SourceType type) {
  switch (type) {
    case SourceType::kQ4_0:
    case SourceType::kQ5_0:
    case SourceType::kQ8_0:
      return {0};
    case SourceType::kQ4_1:
    case SourceType::kQ5_1:
    case SourceType::kQ4_K:
    case SourceType::kQ5_K:
      return {0, 2};
    case SourceType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

std::vector<std::byte> RandomBlocks(SourceType type, uint64_t n_elements, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> out(n_elements / BlockElements(type) * BlockBytes(type));
  const auto uniform = [&rng] { return static_cast<float>(rng() % 4001) / 2000.0f - 1.0f; };
  if (type == SourceType::kF32) {
    for (size_t at = 0; at < out.size(); at += 4) StoreLe<float>(&out[at], uniform());
  } else if (type == SourceType::kF16) {
    for (size_t at = 0; at < out.size(); at += 2) StoreLe(&out[at], FloatToHalf(uniform()));
  } else if (type == SourceType::kBF16) {
    for (size_t at = 0; at < out.size(); at += 2) {
      const float value = uniform();
      std::memcpy(&out[at], reinterpret_cast<const char*>(&value) + 2, 2);
    }
  } else {
    for (std::byte& b : out) b = static_cast<std::byte>(rng());
    for (size_t block = 0; block < out.size(); block += BlockBytes(type)) {
      for (const size_t at : HalfOffsets(type)) {
        StoreLe(&out[block + at], FloatToHalf(0.01f + 0.005f * uniform()));
      }
    }
  }
  return out;
}

TokenizerData SmallVocabulary(uint32_t n) {
  TokenizerData t;
  for (uint32_t id = 0; id < n; ++id) {
    t.tokens.push_back(absl::StrCat("t", id));
    t.scores.push_back(0);
    t.types.push_back(TokenType::kNormal);
  }
  return t;
}

}  // namespace

MemorySource::MemorySource(SourceType type, bool tied_head, bool qkv_bias) {
  config_.architecture = "llama";
  config_.name = "memory";
  config_.n_layers = 2;
  config_.d_model = 256;
  config_.d_ff = 512;
  config_.n_heads = 4;
  config_.n_kv_heads = 2;
  config_.head_dim = 64;
  config_.vocab_size = 40;
  config_.context_length = 64;
  config_.activation = Activation::kRelu;
  config_.tied_head = tied_head;
  config_.qkv_bias = qkv_bias;
  tokenizer_ = SmallVocabulary(config_.vocab_size);
  const uint64_t d = config_.d_model, ff = config_.d_ff, q = config_.q_dim(), kv = config_.kv_dim();
  Add("token_embd.weight", type, {config_.vocab_size, d});
  for (uint32_t l = 0; l < config_.n_layers; ++l) {
    const std::string blk = absl::StrCat("blk.", l, ".");
    Add(blk + "attn_norm.weight", SourceType::kF32, {d});
    Add(blk + "ffn_norm.weight", SourceType::kF32, {d});
    Add(blk + "attn_q.weight", type, {q, d});
    Add(blk + "attn_k.weight", type, {kv, d});
    Add(blk + "attn_v.weight", type, {kv, d});
    Add(blk + "attn_output.weight", type, {d, q});
    Add(blk + "ffn_gate.weight", type, {ff, d});
    Add(blk + "ffn_up.weight", type, {ff, d});
    Add(blk + "ffn_down.weight", type, {d, ff});
    if (!qkv_bias) continue;
    Add(blk + "attn_q.bias", SourceType::kF32, {q});
    Add(blk + "attn_k.bias", SourceType::kF32, {kv});
    Add(blk + "attn_v.bias", SourceType::kF32, {kv});
  }
  Add("output_norm.weight", SourceType::kF32, {d});
  if (!tied_head) Add("output.weight", type, {config_.vocab_size, d});
}

void MemorySource::Add(const std::string& name, SourceType type, std::vector<uint64_t> shape) {
  uint64_t n = 1;
  for (const uint64_t dimension : shape) n *= dimension;
  bytes_[name] = RandomBlocks(type, n, static_cast<uint32_t>(tensors_.size()) + 1);
  tensors_.push_back({name, type, std::move(shape)});
}

void MemorySource::AddRopeFreqs() {
  Add("rope_freqs.weight", SourceType::kF32, {config_.head_dim / 2});
}

void MemorySource::SetType(const std::string& name, SourceType type) {
  for (SourceTensor& t : tensors_) {
    if (t.name != name) continue;
    t.type = type;
    bytes_[name] = RandomBlocks(type, t.shape[0] * t.shape[1], 1234);
  }
}

const SourceTensor* MemorySource::Find(std::string_view name) const {
  const auto found = std::find_if(tensors_.begin(), tensors_.end(),
                                  [name](const SourceTensor& t) { return t.name == name; });
  return found != tensors_.end() ? &*found : nullptr;
}

absl::Status MemorySource::ReadTensor(const SourceTensor& tensor, uint64_t offset,
                                      std::span<std::byte> dst) const {
  const std::vector<std::byte>& bytes = bytes_.at(tensor.name);
  if (offset + dst.size() > bytes.size()) return absl::OutOfRangeError(tensor.name);
  std::copy_n(&bytes[offset], dst.size(), dst.begin());
  return absl::OkStatus();
}

std::vector<float> MemorySource::Floats(const std::string& name) const {
  const SourceTensor& tensor = *Find(name);
  const std::vector<std::byte>& bytes = bytes_.at(name);
  std::vector<float> out(bytes.size() / BlockBytes(tensor.type) * BlockElements(tensor.type));
  DecodeSource(tensor.type, bytes, out);
  return out;
}

std::vector<float> MemorySource::Row(const std::string& name, uint64_t row) const {
  const std::vector<float> all = Floats(name);
  const auto width = static_cast<ptrdiff_t>(Find(name)->shape.back());
  const auto begin = all.begin() + static_cast<ptrdiff_t>(row) * width;
  return {begin, begin + width};
}

std::vector<float> MemorySource::Column(const std::string& name, uint64_t column) const {
  const std::vector<float> all = Floats(name);
  const uint64_t width = Find(name)->shape.back();
  std::vector<float> out;
  for (uint64_t i = column; i < all.size(); i += width) out.push_back(all[i]);
  return out;
}

RepackedFile::RepackedFile(const std::string& path) {
  auto opened = SluiceFile::Open(path);
  EXPECT_TRUE(opened.ok()) << opened.status();
  if (!opened.ok()) return;
  file = *std::move(opened);
  image = SluiceImage::Load(path);
}

std::span<const std::byte> RepackedFile::MatrixRow(MatrixRole role, uint32_t layer,
                                                   uint32_t row) const {
  const MatrixEntry& m = file->matrix(file->MatrixIndex(role, layer));
  const uint64_t at = m.offset + uint64_t{row / m.rows_per_tile} * m.tile_stride +
                      row % m.rows_per_tile * m.row_bytes();
  return std::span(image.bytes).subspan(at, m.row_bytes());
}

std::span<const std::byte> RepackedFile::UpRow(uint32_t layer, uint32_t neuron) const {
  const BundleLayout& b = file->bundles();
  return std::span(image.bytes)
      .subspan(b.BundleOffset(layer, neuron) + b.up_offset(), b.row_bytes());
}

std::span<const std::byte> RepackedFile::DownColumn(uint32_t layer, uint32_t neuron) const {
  const BundleLayout& b = file->bundles();
  return std::span(image.bytes)
      .subspan(b.BundleOffset(layer, neuron) + b.down_offset(), b.row_bytes());
}

std::vector<std::byte> Encoded(WeightType type, std::span<const float> row) {
  std::vector<std::byte> out(RowBytes(type, row.size()));
  EncodeRow(type, row, out);
  return out;
}

std::vector<float> Decoded(WeightType type, std::span<const std::byte> row) {
  size_t n = kQuantBlock;
  while (RowBytes(type, n) < row.size()) n += kQuantBlock;
  std::vector<float> out(n);
  DecodeRow(type, row, out);
  return out;
}

}  // namespace sluice
