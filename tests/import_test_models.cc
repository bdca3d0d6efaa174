#include "tests/import_test_models.h"

#include <numeric>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "layout/byte_io.h"
#include "layout/gguf_writer.h"
#include "layout/weight_type.h"
#include "tests/import_test_files.h"

namespace sluice {
namespace {

constexpr uint64_t kWidth = 32, kFfn = 44, kKvWidth = 16, kTokens = 8, kPositions = 64;

uint64_t Elements(const std::vector<uint64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), uint64_t{1}, std::multiplies<>());
}

}  // namespace

std::map<std::string, TinyTensor> TinyTensors(const std::string& architecture) {
  const bool is_opt = architecture == "opt";
  const bool layer_norm = is_opt || architecture == "nemotron";
  const bool gated = !layer_norm && architecture != "arcee";
  const uint64_t kv = is_opt ? kWidth : kKvWidth;
  std::map<std::string, TinyTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape) {
    std::mt19937 rng(static_cast<uint32_t>(tensors.size()) + 1);
    TinyTensor t{std::move(shape), {}};
    t.values.resize(Elements(t.shape));
    for (float& v : t.values) v = static_cast<float>(static_cast<int>(rng() % 255) - 127) / 64.0f;
    tensors[name] = std::move(t);
  };
  const auto norm = [&](const std::string& name) {
    add(name + ".weight", {kWidth});
    if (layer_norm) add(name + ".bias", {kWidth});
  };
  add("token_embd.weight", {kTokens, kWidth});
  if (is_opt) add("position_embd.weight", {kPositions, kWidth});
  norm("output_norm");
  if (!is_opt) add("output.weight", {kTokens, kWidth});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string blk = absl::StrCat("blk.", layer, ".");
    norm(blk + "attn_norm");
    add(blk + "attn_q.weight", {kWidth, kWidth});
    add(blk + "attn_k.weight", {kv, kWidth});
    add(blk + "attn_v.weight", {kv, kWidth});
    add(blk + "attn_output.weight", {kWidth, kWidth});
    norm(blk + "ffn_norm");
    if (gated) add(blk + "ffn_gate.weight", {kFfn, kWidth});
    add(blk + "ffn_up.weight", {kFfn, kWidth});
    add(blk + "ffn_down.weight", {kWidth, kFfn});
    if (is_opt) {
      add(blk + "attn_output.bias", {kWidth});
      add(blk + "ffn_up.bias", {kFfn});
      add(blk + "ffn_down.bias", {kWidth});
    }
    if (architecture != "qwen2" && !is_opt) continue;
    add(blk + "attn_q.bias", {kWidth});
    add(blk + "attn_k.bias", {kv});
    add(blk + "attn_v.bias", {kv});
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
           {arch + ".context_length", kPositions},
           {arch + ".attention.head_count", 4}},
      tokens{"<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc"},
      tensors(TinyTensors(arch)) {
  const bool layer_norm = arch == "opt" || arch == "nemotron";
  floats[absl::StrCat(arch, ".attention.layer_norm_", layer_norm ? "" : "rms_", "epsilon")] = 1e-5f;
  if (arch != "opt") ints[arch + ".attention.head_count_kv"] = 2;
  if (arch == "nemotron") ints[arch + ".rope.dimension_count"] = 4;
}

void TinyGguf::AddMetadata(GgufWriter& writer) const {
  for (const auto& [key, value] : strings) writer.AddString(key, value);
  for (const auto& [key, value] : ints) writer.AddUint32(key, value);
  for (const auto& [key, value] : floats) writer.AddFloat32(key, value);
  for (const auto& [key, value] : bools) writer.AddBool(key, value);
  for (const auto& [key, value] : int_arrays) writer.AddInt32Array(key, value);
  for (const auto& [key, value] : string_arrays) writer.AddStringArray(key, value);
  writer.AddStringArray("tokenizer.ggml.tokens", tokens);
  writer.AddFloat32Array("tokenizer.ggml.scores", std::vector<float>(tokens.size()));
  std::vector<int32_t> types(tokens.size(), 1);
  types[0] = 2;
  types[1] = types[2] = 3;
  writer.AddInt32Array("tokenizer.ggml.token_type", types);
}

namespace {

using NamedTensors = std::vector<std::pair<std::string, TinyTensor>>;

void WriteTensors(GgufWriter& writer, const std::string& path, const NamedTensors& tensors) {
  for (const auto& [name, t] : tensors) writer.DeclareTensor(name, t.type, t.shape);
  ASSERT_TRUE(writer.Start(path, true).ok());
  for (const auto& [name, t] : tensors) ASSERT_TRUE(writer.WriteFloats(t.values).ok()) << name;
  const absl::Status finished = writer.Finish();
  ASSERT_TRUE(finished.ok()) << finished;
}

}  // namespace

void TinyGguf::Write(const std::string& path) const {
  GgufWriter writer;
  AddMetadata(writer);
  WriteTensors(writer, path, NamedTensors(tensors.begin(), tensors.end()));
}

void TinyGguf::WriteSplit(const std::string& prefix, uint16_t parts) const {
  std::vector<NamedTensors> dealt(parts);
  size_t next = 0;
  for (const auto& tensor : tensors) dealt[next++ % parts].push_back(tensor);
  for (uint16_t part = 0; part < parts; ++part) {
    GgufWriter writer;
    if (part == 0) AddMetadata(writer);
    writer.AddUint16("split.no", part);
    writer.AddUint16("split.count", parts);
    writer.AddInt32("split.tensors.count", static_cast<int32_t>(tensors.size()));
    WriteTensors(writer, absl::StrFormat("%s-%05d-of-%05d.gguf", prefix, part + 1, parts),
                 dealt[part]);
  }
}

namespace {

using Names = std::map<std::string, std::string>;

const Names kLlamaNames = {
    {"token_embd", "model.embed_tokens"},
    {"output_norm", "model.norm"},
    {"output", "lm_head"},
    {"blk", "model.layers"},
    {"attn_norm", "input_layernorm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.o_proj"},
    {"ffn_norm", "post_attention_layernorm"},
    {"ffn_gate", "mlp.gate_proj"},
    {"ffn_up", "mlp.up_proj"},
    {"ffn_down", "mlp.down_proj"},
};
const Names kOptNames = {
    {"token_embd", "model.decoder.embed_tokens"},
    {"position_embd", "model.decoder.embed_positions"},
    {"output_norm", "model.decoder.final_layer_norm"},
    {"blk", "model.decoder.layers"},
    {"attn_norm", "self_attn_layer_norm"},
    {"attn_q", "self_attn.q_proj"},
    {"attn_k", "self_attn.k_proj"},
    {"attn_v", "self_attn.v_proj"},
    {"attn_output", "self_attn.out_proj"},
    {"ffn_norm", "final_layer_norm"},
    {"ffn_up", "fc1"},
    {"ffn_down", "fc2"},
};

std::string HfName(std::string name, const Names& names) {
  std::string prefix;
  if (name.starts_with("blk.")) {
    const size_t part = name.find('.', 4) + 1;
    prefix = absl::StrCat(names.at("blk"), ".", name.substr(4, part - 4));
    name = name.substr(part);
  }
  const size_t suffix = name.rfind('.');
  return absl::StrCat(prefix, names.at(name.substr(0, suffix)), name.substr(suffix));
}

// What the checkpoint has where a GGUF file has `tensor`: two rows for padding before OPT's
// positions; norm weights less one in Nemotron.
TinyTensor HfTensor(const std::string& architecture, const std::string& name, TinyTensor tensor) {
  if (name == "position_embd.weight") {
    tensor.shape[0] += 2;
    tensor.values.insert(tensor.values.begin(), 2 * kWidth, 99.0f);
  }
  if (architecture == "nemotron" && name.ends_with("norm.weight")) {
    for (float& v : tensor.values) v -= 1.0f;
  }
  return tensor;
}

const char* DtypeOf(SourceType type) {
  return type == SourceType::kF32 ? "F32" : type == SourceType::kF16 ? "F16" : "BF16";
}

void AppendValues(const TinyTensor& t, std::string& data) {
  for (const float v : t.values) {
    char raw[4];
    StoreLe(raw, v);
    if (t.type == SourceType::kF16) StoreLe(raw, FloatToHalf(v));
    if (t.type == SourceType::kBF16) data.append(raw + 2, 2);  // the upper half of the float
    if (t.type != SourceType::kBF16) data.append(raw, BlockBytes(t.type));
  }
}

void WriteSafetensors(const std::string& path, const NamedTensors& tensors) {
  std::string header = "{\"__metadata__\":{\"format\":\"pt\"}";
  std::string data;
  for (const auto& [name, t] : tensors) {
    const size_t begin = data.size();
    AppendValues(t, data);
    absl::StrAppend(&header, ",\"", name, "\":{\"dtype\":\"", DtypeOf(t.type), "\",\"shape\":[",
                    absl::StrJoin(t.shape, ","), "],\"data_offsets\":[", begin, ",", data.size(),
                    "]}");
  }
  header += "}";
  char length[8];
  StoreLe<uint64_t>(length, header.size());
  WriteFile(path, absl::StrCat(absl::string_view(length, 8), header, data));
}

}  // namespace

TinyFolder::TinyFolder(const std::string& architecture)
    : config{{"model_type", "\"qwen2\""},       {"hidden_size", "32"},
             {"intermediate_size", "44"},       {"num_hidden_layers", "2"},
             {"num_attention_heads", "4"},      {"num_key_value_heads", "2"},
             {"max_position_embeddings", "64"}, {"vocab_size", "8"},
             {"rms_norm_eps", "1e-05"},         {"tie_word_embeddings", "false"},
             {"hidden_act", "\"silu\""}},
      tokenizer_json(R"({"model": {"type": "BPE", "vocab":
          {"<unk>": 0, "<s>": 1, "</s>": 2, "a": 3, "b": 4, "c": 5, "ab": 6, "bc": 7},
          "merges": ["a b", "b c"]},
          "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
          "decoder": {"type": "ByteLevel"}})") {
  const bool is_opt = architecture == "opt";
  for (const auto& [name, tensor] : TinyTensors(architecture)) {
    tensors[HfName(name, is_opt ? kOptNames : kLlamaNames)] = HfTensor(architecture, name, tensor);
  }
  config["model_type"] = absl::StrCat("\"", architecture, "\"");
  if (architecture == "nemotron" || architecture == "arcee") config["hidden_act"] = "\"relu2\"";
  if (architecture == "bamboo") config["hidden_act"] = "\"relu\"";
  if (architecture == "nemotron") {
    config["norm_eps"] = config["rms_norm_eps"];
    config.erase("rms_norm_eps");
  }
  if (!is_opt) return;
  for (const char* key : {"intermediate_size", "num_key_value_heads", "rms_norm_eps", "hidden_act",
                          "tie_word_embeddings"}) {
    config.erase(key);
  }
  config["ffn_dim"] = "44";
  config["activation_function"] = "\"relu\"";
  config["word_embed_proj_dim"] = "32";
  config["do_layer_norm_before"] = "true";
}

void TinyFolder::Write(const std::string& folder, int shards) const {
  std::vector<std::string> members;
  for (const auto& [key, value] : config) members.push_back(absl::StrCat("\"", key, "\":", value));
  WriteFile(folder + "/config.json", absl::StrCat("{", absl::StrJoin(members, ","), "}"));
  WriteFile(folder + "/tokenizer.json", tokenizer_json);
  if (shards == 0) {
    WriteSafetensors(folder + "/model.safetensors", NamedTensors(tensors.begin(), tensors.end()));
    return;
  }
  std::vector<NamedTensors> dealt(static_cast<size_t>(shards));
  std::vector<std::string> index;
  for (const auto& tensor : tensors) {
    const size_t shard = index.size() % dealt.size();
    dealt[shard].push_back(tensor);
    index.push_back(absl::StrFormat("\"%s\":\"model-%05d-of-%05d.safetensors\"", tensor.first,
                                    shard + 1, shards));
  }
  for (size_t i = 0; i < dealt.size(); ++i) {
    WriteSafetensors(absl::StrFormat("%s/model-%05d-of-%05d.safetensors", folder, i + 1, shards),
                     dealt[i]);
  }
  WriteFile(folder + "/model.safetensors.index.json",
            absl::StrCat("{\"metadata\":{\"total_size\":1},\"weight_map\":{",
                         absl::StrJoin(index, ","), "}}"));
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
