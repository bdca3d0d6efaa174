#include "tests/import_test_models.h"

#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "layout/gguf_writer.h"

namespace sluice {
namespace {

constexpr uint64_t kWidth = 32, kFfn = 44, kKvWidth = 16, kTokens = 8;

uint64_t Elements(const std::vector<uint64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

}  // namespace

std::map<std::string, TinyTensor> TinyTensors(bool qkv_bias) {
  std::map<std::string, TinyTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape) {
    std::mt19937 rng(static_cast<uint32_t>(tensors.size()) + 1);
    TinyTensor t{std::move(shape), {}};
    t.values.resize(Elements(t.shape));
    for (float& v : t.values) v = static_cast<float>(static_cast<int>(rng() % 255) - 127) / 64.0f;
    tensors[name] = std::move(t);
  };
  add("token_embd.weight", {kTokens, kWidth});
  add("output_norm.weight", {kWidth});
  add("output.weight", {kTokens, kWidth});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string blk = absl::StrCat("blk.", layer, ".");
    add(blk + "attn_norm.weight", {kWidth});
    add(blk + "attn_q.weight", {kWidth, kWidth});
    add(blk + "attn_k.weight", {kKvWidth, kWidth});
    add(blk + "attn_v.weight", {kKvWidth, kWidth});
    add(blk + "attn_output.weight", {kWidth, kWidth});
    add(blk + "ffn_norm.weight", {kWidth});
    add(blk + "ffn_gate.weight", {kFfn, kWidth});
    add(blk + "ffn_up.weight", {kFfn, kWidth});
    add(blk + "ffn_down.weight", {kWidth, kFfn});
    if (!qkv_bias) continue;
    add(blk + "attn_q.bias", {kWidth});
    add(blk + "attn_k.bias", {kKvWidth});
    add(blk + "attn_v.bias", {kKvWidth});
  }
  return tensors;
}

TinyGguf::TinyGguf(const std::string& arch)
    : strings{{"general.architecture", arch},
              {"general.name", "tiny"},
              {"tokenizer.ggml.model", "llama"}},
      ints{{arch + ".block_count", 2},
           {arch + ".embedding_length", kWidth},
           {arch + ".feed_forward_length", kFfn},
           {arch + ".context_length", 64},
           {arch + ".attention.head_count", 4},
           {arch + ".attention.head_count_kv", 2}},
      floats{{arch + ".attention.layer_norm_rms_epsilon", 1e-5f}},
      tokens{"<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc"},
      tensors(TinyTensors(arch == "qwen2")) {}

void TinyGguf::Write(const std::string& path) const {
  GgufWriter writer;
  for (const auto& [key, value] : strings) writer.AddString(key, value);
  for (const auto& [key, value] : ints) writer.AddUint32(key, value);
  for (const auto& [key, value] : floats) writer.AddFloat32(key, value);
  for (const auto& [key, value] : bools) writer.AddBool(key, value);
  for (const auto& [key, value] : int_arrays) writer.AddInt32Array(key, value);
  writer.AddStringArray("tokenizer.ggml.tokens", tokens);
  writer.AddFloat32Array("tokenizer.ggml.scores", std::vector<float>(tokens.size()));
  std::vector<int32_t> types(tokens.size(), 1);
  types[0] = 2;
  types[1] = types[2] = 3;
  writer.AddInt32Array("tokenizer.ggml.token_type", types);
  for (const auto& [name, t] : tensors) writer.DeclareTensor(name, t.type, t.shape);
  ASSERT_TRUE(writer.Start(path, true).ok());
  for (const auto& [name, t] : tensors) ASSERT_TRUE(writer.WriteFloats(t.values).ok()) << name;
  const absl::Status finished = writer.Finish();
  ASSERT_TRUE(finished.ok()) << finished;
}

std::vector<float> SourceFloats(const ModelSource& source, const std::string& name) {
  const SourceTensor* tensor = source.Find(name);
  if (tensor == nullptr) return {};
  std::vector<std::byte> raw(SourceTensorBytes(tensor->type, tensor->shape).value());
  const absl::Status read = source.ReadTensor(*tensor, 0, raw);
  EXPECT_TRUE(read.ok()) << read;
  std::vector<float> out(Elements(tensor->shape));
  DecodeSource(tensor->type, raw, out);
  return out;
}

}  // namespace sluice
