// Relatives of the Llama family as ModelSource: OPT, Nemotron and Arcee, from Hugging Face folders
// and from GGUF.
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/gguf_source.h"
#include "tests/cost_bound.h"
#include "tests/import_test_models.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kRelatives[] = {"opt", "nemotron", "arcee"};
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

class RelativesTest : public ::testing::Test {
 protected:
  RelativesTest() { std::filesystem::create_directory(folder_); }

  absl::StatusOr<std::unique_ptr<ModelSource>> OpenGguf(
      const std::string& architecture,
      const std::function<void(TinyGguf&)>& change = [](auto&) {}) {
    TinyGguf model(architecture);
    change(model);
    model.Write(gguf_);
    const CostBound bound;
    return OpenModelSource(gguf_, {});
  }
  absl::StatusOr<std::unique_ptr<ModelSource>> OpenFolder(
      const std::string& architecture,
      const std::function<void(TinyFolder&)>& change = [](auto&) {}) {
    TinyFolder folder(architecture);
    change(folder);
    folder.Write(folder_);
    const CostBound bound;
    return OpenModelSource(folder_, {});
  }
  static void ExpectRefused(const absl::Status& status, absl::StatusCode code,
                            const std::string& what) {
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tiny"), HasSubstr(what)));
  }
  void ExpectGgufRefused(const std::string& architecture,
                         const std::function<void(TinyGguf&)>& change, absl::StatusCode code,
                         const std::string& what) {
    ExpectRefused(OpenGguf(architecture, change).status(), code, what);
  }
  void ExpectConfigRefused(const std::string& architecture, const std::string& key,
                           const std::string& value, absl::StatusCode code,
                           const std::string& what) {
    const auto source = OpenFolder(architecture, [&](TinyFolder& f) { f.config[key] = value; });
    ExpectRefused(source.status(), code, what);
  }

  TempDir dir_;
  const std::string gguf_ = dir_.File("tiny.gguf"), folder_ = dir_.File("tiny-model");
};

TEST_F(RelativesTest, FoldersEqualTheGgufOfTheSameWeights) {
  for (const std::string architecture : kRelatives) {
    SCOPED_TRACE(architecture);
    const auto gguf = OpenGguf(architecture), hf = OpenFolder(architecture);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    ASSERT_TRUE(hf.ok()) << hf.status();
    ASSERT_EQ((*hf)->tensors().size(), (*gguf)->tensors().size());
    for (const auto& [name, tensor] : TinyTensors(architecture)) {
      ASSERT_NE((*hf)->Find(name), nullptr) << name;
      EXPECT_EQ((*hf)->Find(name)->shape, tensor.shape) << name;
      EXPECT_EQ(SourceFloats(**hf, name), tensor.values) << name;
      EXPECT_EQ(SourceFloats(**gguf, name), tensor.values) << name;
    }
    ModelConfig config = (*hf)->config();
    config.name = "tiny";
    // llama.cpp's converter moves the rows of Arcee's Q and K, as it does for Llama.
    if (architecture == "arcee") config.rope_style = RopeStyle::kInterleaved;
    ByteWriter from_hf, from_gguf;
    WriteConfig(config, from_hf);
    WriteConfig((*gguf)->config(), from_gguf);
    EXPECT_EQ(from_hf.bytes(), from_gguf.bytes());
  }
}

TEST_F(RelativesTest, OptHasLayerNormsBiasesAndLearnedPositions) {
  const auto source = OpenFolder("opt");
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& c = (*source)->config();
  EXPECT_EQ(c.architecture, "opt");
  EXPECT_EQ(c.norm, NormKind::kLayer);
  EXPECT_EQ(c.norm_epsilon, 1e-5f);
  EXPECT_EQ(c.activation, Activation::kRelu);
  EXPECT_EQ(c.activation_origin, ActivationOrigin::kMetadata);
  EXPECT_FALSE(c.gated);
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.ffn_bias && c.learned_positions && c.tied_head);
  EXPECT_EQ(c.rope_dim(), 0u);
  EXPECT_EQ(c.n_kv_heads, 4u);
  EXPECT_EQ(c.context_length, 64u);
  EXPECT_FALSE(c.is_llama_family());
}

TEST_F(RelativesTest, NemotronRotatesPartOfAHeadAndHasNoBiasesUnlessItSaysSo) {
  const auto source = OpenFolder("nemotron");
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& c = (*source)->config();
  EXPECT_EQ(c.norm, NormKind::kLayer);
  EXPECT_EQ(c.activation, Activation::kRelu2);
  EXPECT_FALSE(c.gated || c.qkv_bias || c.o_bias || c.ffn_bias || c.learned_positions);
  EXPECT_EQ(c.rope_dim(), 4u);  // what Nemotron has where the file does not say
  for (const auto& part : {std::pair("0.25", 2u), {"0.75", 6u}, {"1.0", 8u}}) {
    const auto rotated = OpenFolder(
        "nemotron", [&](TinyFolder& f) { f.config["partial_rotary_factor"] = part.first; });
    ASSERT_TRUE(rotated.ok()) << rotated.status();
    EXPECT_EQ((*rotated)->config().rope_dim(), part.second);
  }
  const auto scaled = OpenFolder("nemotron", [](TinyFolder& f) {
    f.config["rope_parameters"] =
        R"({"rope_type":"linear","factor":4.0,"partial_rotary_factor":0.75})";
  });
  ASSERT_TRUE(scaled.ok()) << scaled.status();
  EXPECT_THAT(SourceFloats(**scaled, "rope_freqs.weight"), testing::ElementsAre(4, 4, 4));
  ExpectConfigRefused("nemotron", "attention_bias", "true", kInvalid,
                      "model.layers.0.self_attn.q_proj.bias");
  ExpectConfigRefused("nemotron", "mlp_bias", "true", kInvalid, "model.layers.0.mlp.up_proj.bias");
  for (const char* bad : {"0", "-0.5", "1.5"}) {
    ExpectConfigRefused("nemotron", "partial_rotary_factor", bad, kUnimplemented,
                        "partial_rotary_factor");
  }
  ExpectConfigRefused("nemotron", "partial_rotary_factor", "0.4", kInvalid, "RoPE leaves 5");
}

TEST_F(RelativesTest, ArceeIsLlamaWithoutAGate) {
  const auto source = OpenFolder("arcee");
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& c = (*source)->config();
  EXPECT_EQ(c.norm, NormKind::kRms);
  EXPECT_EQ(c.activation, Activation::kRelu2);
  EXPECT_FALSE(c.gated);
  EXPECT_EQ(c.rope_dim(), c.head_dim);
  ExpectConfigRefused("arcee", "partial_rotary_factor", "0.5", kUnimplemented, "whole heads");
}

TEST_F(RelativesTest, TheArchitectureImpliesTheActivation) {
  for (const std::string architecture : kRelatives) {
    const Activation implied = architecture == "opt" ? Activation::kRelu : Activation::kRelu2;
    const auto gguf = OpenGguf(architecture);
    ASSERT_TRUE(gguf.ok()) << gguf.status();
    EXPECT_EQ((*gguf)->config().activation, implied);
    const auto folder = OpenFolder(architecture, [](TinyFolder& f) {
      f.config.erase("hidden_act");
      f.config.erase("activation_function");
    });
    ASSERT_TRUE(folder.ok()) << folder.status();
    EXPECT_EQ((*folder)->config().activation, implied);
  }
  const auto stated = OpenGguf("opt", [](TinyGguf& m) { m.strings[kActivationKey] = "relu2"; });
  ASSERT_TRUE(stated.ok()) << stated.status();
  EXPECT_EQ((*stated)->config().activation, Activation::kRelu2);
  // Galactica is an OPT with another activation.
  ExpectConfigRefused("opt", "activation_function", "\"gelu\"", kInvalid,
                      "activation_function: unknown activation \"gelu\"");
  ExpectConfigRefused("arcee", "hidden_act", "\"gelu\"", kInvalid, "hidden_act");
}

TEST_F(RelativesTest, OptFoldersMayLackThePrefixOfTheModel) {
  const auto shorten = [](TinyFolder& f) {
    std::map<std::string, TinyTensor> renamed;
    for (const auto& [name, tensor] : f.tensors) renamed[name.substr(6)] = tensor;
    f.tensors = renamed;
  };
  const auto source = OpenFolder("opt", shorten);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(SourceFloats(**source, "blk.1.ffn_up.bias"),
            TinyTensors("opt")["blk.1.ffn_up.bias"].values);
  const auto incomplete = OpenFolder("opt", [&](TinyFolder& f) {
    shorten(f);
    f.tensors.erase("decoder.layers.0.fc2.bias");
  });
  ExpectRefused(incomplete.status(), kInvalid, "\"decoder.layers.0.fc2.bias\" is missing");
}

TEST_F(RelativesTest, OptCheckpointsThatAreBuiltOtherwiseAreRefusedByName) {
  ExpectConfigRefused("opt", "do_layer_norm_before", "false", kUnimplemented,
                      "do_layer_norm_before");
  ExpectConfigRefused("opt", "word_embed_proj_dim", "16", kUnimplemented, "word_embed_proj_dim");
  ExpectConfigRefused("opt", "enable_bias", "false", kUnimplemented, "enable_bias");
  ExpectConfigRefused("opt", "layer_norm_elementwise_affine", "false", kUnimplemented,
                      "layer_norm_elementwise_affine");
  ExpectConfigRefused("opt", "_remove_final_layer_norm", "true", kUnimplemented,
                      "_remove_final_layer_norm");
  ExpectConfigRefused("opt", "do_layer_norm_before", "1", kInvalid, "do_layer_norm_before");
  ExpectConfigRefused("opt", "ffn_dim", "48", kInvalid, "fc1.weight");
  ExpectConfigRefused("opt", "max_position_embeddings", "63", kInvalid, "two rows more");
  ExpectConfigRefused("opt", "max_position_embeddings", "100000", kInvalid, "learned positions");
}

TEST_F(RelativesTest, LearnedPositionsComeWithAndWithoutTheRowsForPadding) {
  const std::vector<float> positions = TinyTensors("opt")["position_embd.weight"].values;
  const auto pad = [](TinyGguf& m, uint64_t rows) {
    TinyTensor& t = m.tensors["position_embd.weight"];
    t.shape[0] = rows;
    t.values.insert(t.values.begin(), 2 * 32, 99.0f);
    t.values.resize(rows * 32);
  };
  const auto with_padding = OpenGguf("opt", [&](TinyGguf& m) { pad(m, 66); });
  ASSERT_TRUE(with_padding.ok()) << with_padding.status();
  EXPECT_EQ(SourceFloats(**with_padding, "position_embd.weight"), positions);

  // PowerInfer's converter counts them as context.
  const auto powerinfer = OpenGguf("opt", [&](TinyGguf& m) {
    pad(m, 2050);
    m.ints["opt.context_length"] = 2050;
    m.floats.erase("opt.attention.layer_norm_epsilon");
  });
  ASSERT_TRUE(powerinfer.ok()) << powerinfer.status();
  EXPECT_EQ((*powerinfer)->config().context_length, 2048u);
  EXPECT_EQ((*powerinfer)->config().norm_epsilon, 1e-5f);
  const auto all = SourceFloats(**powerinfer, "position_embd.weight");
  ASSERT_EQ(all.size(), 2048u * 32);
  EXPECT_TRUE(std::equal(positions.begin(), positions.end(), all.begin()));

  ExpectGgufRefused(
      "opt", [&](TinyGguf& m) { pad(m, 65); }, kInvalid, "position_embd.weight");
  std::vector<std::byte> dst(4);
  const SourceTensor& tensor = *(*with_padding)->Find("position_embd.weight");
  for (const uint64_t offset : {uint64_t{64 * 32 * 4}, UINT64_MAX}) {
    EXPECT_TRUE(absl::IsOutOfRange((*with_padding)->ReadTensor(tensor, offset, dst)));
  }
}

TEST_F(RelativesTest, EveryTensorMustBeThereInItsShape) {
  for (const std::string architecture : kRelatives) {
    for (const auto& tensor : TinyTensors(architecture)) {
      const std::string& name = tensor.first;
      if (name == "output.weight") continue;  // decides on tying
      ExpectGgufRefused(
          architecture, [&](TinyGguf& m) { m.tensors.erase(name); }, kInvalid, name);
      ExpectGgufRefused(
          architecture, [&](TinyGguf& m) { m.tensors[name].shape.push_back(1); }, kInvalid, name);
    }
  }
}

TEST_F(RelativesTest, WhatWouldChangeTheTextIsRefusedByName) {
  const auto with_tensor = [](const char* name) {
    return [name](TinyGguf& m) { m.tensors[name] = {{1}, {0}}; };
  };
  ExpectGgufRefused("opt", with_tensor("blk.0.ffn_gate.weight"), kUnimplemented,
                    "blk.0.ffn_gate.weight");
  ExpectGgufRefused("arcee", with_tensor("output_norm.bias"), kUnimplemented, "output_norm.bias");
  ExpectGgufRefused("nemotron", with_tensor("blk.0.attn_q_norm.weight"), kUnimplemented,
                    "attn_q_norm");
  ExpectGgufRefused("nemotron", with_tensor("blk.0.ffn_up.bias"), kInvalid, "ffn_up.bias");
  ExpectGgufRefused(
      "nemotron", [](TinyGguf& m) { m.ints["nemotron.rope.dimension_count"] = 10; }, kUnimplemented,
      "10 of the 8");
  ExpectGgufRefused(
      "nemotron", [](TinyGguf& m) { m.ints["nemotron.rope.dimension_count"] = 3; }, kInvalid,
      "RoPE leaves 5");
  ExpectGgufRefused(
      "nemotron", [](TinyGguf& m) { m.floats["nemotron.attention.layer_norm_epsilon"] = 0; },
      kInvalid, "norm epsilon");
}

TEST_F(RelativesTest, NemotronBiasesAreFoundInGguf) {
  const auto source = OpenGguf("nemotron", [](TinyGguf& m) {
    for (const auto& [name, tensor] : TinyTensors("opt")) {
      if (name.starts_with("blk.") && name.ends_with(".bias")) m.tensors[name] = tensor;
    }
    for (const char* name :
         {"blk.0.attn_k.bias", "blk.0.attn_v.bias", "blk.1.attn_k.bias", "blk.1.attn_v.bias"}) {
      m.tensors[name] = {{16}, std::vector<float>(16)};
    }
  });
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& c = (*source)->config();
  EXPECT_TRUE(c.qkv_bias && c.o_bias && c.ffn_bias);
}

TEST_F(RelativesTest, OptInGgufHasTheTokenizerOfGpt2AndItsOwnBos) {
  const auto as_gpt2 = [](TinyGguf& m) {
    m.strings["tokenizer.ggml.model"] = "gpt2";
    m.string_arrays["tokenizer.ggml.merges"] = {"a b", "b c"};
  };
  const auto source = OpenGguf("opt", as_gpt2);
  ASSERT_TRUE(source.ok()) << source.status();
  const TokenizerData& t = (*source)->tokenizer();
  EXPECT_EQ(t.kind, TokenizerKind::kByteBpe);
  EXPECT_EQ(t.pre, PreTokenizer::kGpt2);
  EXPECT_EQ(t.bos, 2);
  EXPECT_EQ(t.eos, 2);
  EXPECT_TRUE(t.add_bos);
  EXPECT_TRUE((*source)->warnings().empty());
  const auto stated = OpenGguf("opt", [&](TinyGguf& m) {
    as_gpt2(m);
    m.bools["tokenizer.ggml.add_bos_token"] = false;
    m.ints["tokenizer.ggml.eos_token_id"] = 1;
  });
  ASSERT_TRUE(stated.ok()) << stated.status();
  EXPECT_FALSE((*stated)->tokenizer().add_bos);
  EXPECT_EQ((*stated)->tokenizer().eos, 1);
}

TEST_F(RelativesTest, AVocabularyInTheOlderFormIsToldHowToConvertIt) {
  TinyFolder("opt").Write(folder_);
  std::filesystem::rename(folder_ + "/tokenizer.json", folder_ + "/vocab.json");
  ExpectRefused(OpenModelSource(folder_, {}).status(), absl::StatusCode::kNotFound, "vocab.json");
}

}  // namespace
}  // namespace sluice
