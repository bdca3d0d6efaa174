// Hugging Face folders as ModelSource.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/hf_config.h"
#include "tests/cost_bound.h"
#include "tests/import_test_files.h"
#include "tests/import_test_models.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class HfSourceTest : public ::testing::Test {
 protected:
  HfSourceTest() { std::filesystem::create_directory(folder_); }

  absl::StatusOr<std::unique_ptr<ModelSource>> OpenChanged(
      const std::function<void(TinyFolder&)>& change, const ImportOptions& options = {}) {
    TinyFolder folder;
    change(folder);
    folder.Write(folder_);
    const CostBound bound;
    return OpenModelSource(folder_, options);
  }
  void ExpectRefused(const std::function<void(TinyFolder&)>& change, absl::StatusCode code,
                     const std::string& what) {
    const absl::Status status = OpenChanged(change).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tiny-model"), HasSubstr(what)));
  }
  // Refuses config.json with `key` set to the JSON `value`.
  void ExpectConfigRefused(const std::string& key, const std::string& value, absl::StatusCode code,
                           const std::string& what) {
    ExpectRefused([&](TinyFolder& f) { f.config[key] = value; }, code, what);
  }

  TempDir dir_;
  std::string folder_ = dir_.File("tiny-model");
};

TEST_F(HfSourceTest, FolderEqualsTheGgufOfTheSameWeights) {
  TinyGguf("qwen2").Write(dir_.File("tiny.gguf"));
  const auto gguf = OpenModelSource(dir_.File("tiny.gguf"), {});
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  for (const int shards : {0, 1, 3}) {
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directory(folder_);
    TinyFolder().Write(folder_, shards);
    const auto hf = OpenModelSource(folder_, {});
    ASSERT_TRUE(hf.ok()) << hf.status();
    ASSERT_EQ((*hf)->tensors().size(), (*gguf)->tensors().size());
    for (const SourceTensor& tensor : (*gguf)->tensors()) {
      ASSERT_NE((*hf)->Find(tensor.name), nullptr) << tensor.name;
      EXPECT_EQ((*hf)->Find(tensor.name)->shape, tensor.shape) << tensor.name;
      EXPECT_EQ(SourceFloats(**hf, tensor.name), SourceFloats(**gguf, tensor.name)) << tensor.name;
    }
    ModelConfig config = (*hf)->config();
    EXPECT_EQ(config.name, "tiny-model");
    EXPECT_EQ(config.activation_origin, ActivationOrigin::kMetadata);
    config.name = "tiny";
    config.activation_origin = ActivationOrigin::kAssumed;
    ByteWriter from_hf, from_gguf;
    WriteConfig(config, from_hf);
    WriteConfig((*gguf)->config(), from_gguf);
    EXPECT_EQ(from_hf.bytes(), from_gguf.bytes());
    EXPECT_EQ((*hf)->tokenizer().tokens, (*gguf)->tokenizer().tokens);
  }
}

TEST_F(HfSourceTest, HalfAndBfloatWeightsKeepTheirValues) {
  const auto source = OpenChanged([](TinyFolder& f) {
    bool half = false;
    for (auto& [name, tensor] : f.tensors) {
      tensor.type = (half = !half) ? SourceType::kF16 : SourceType::kBF16;
    }
  });
  ASSERT_TRUE(source.ok()) << source.status();
  for (const auto& [name, tensor] : TinyTensors("qwen2")) {
    EXPECT_EQ(SourceFloats(**source, name), tensor.values) << name;
  }
}

TEST_F(HfSourceTest, ModelTypesAndOptionalFieldsAreRead) {
  const auto source = OpenChanged([](TinyFolder& f) {
    f.config["model_type"] = "\"mistral\"";
    f.config["_name_or_path"] = "\"org/name\"";
    f.config["hidden_act"] = "\"fatrelu\"";
    f.config["hidden_act_param"] = "0.01";
    f.config["rope_theta"] = "1000000.0";
    f.config["rope_scaling"] = "null";
    f.config["head_dim"] = "8";
    f.config["sliding_window"] = "16";
    f.config["tie_word_embeddings"] = "true";
    f.config["quantization_config"] = "null";
  });
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& c = (*source)->config();
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.name, "org/name");
  EXPECT_EQ(c.activation, Activation::kFatRelu);
  EXPECT_EQ(c.activation_threshold, 0.01f);
  EXPECT_EQ(c.rope_base, 1e6f);
  EXPECT_EQ(c.rope_style, RopeStyle::kHalf);
  EXPECT_EQ(c.context_length, 16u);
  EXPECT_TRUE(c.tied_head);
  EXPECT_EQ((*source)->Find("output.weight"), nullptr);
  EXPECT_THAT((*source)->warnings(),
              ::testing::IsSupersetOf({HasSubstr("lm_head.weight"), HasSubstr("sliding window")}));
}

TEST_F(HfSourceTest, TheActivationIsKnownByItsOtherNameAndTheFlagOverridesAnUnknownOne) {
  const auto swish = OpenChanged([](TinyFolder& f) { f.config["hidden_act"] = "\"swish\""; });
  ASSERT_TRUE(swish.ok()) << swish.status();
  EXPECT_EQ((*swish)->config().activation, Activation::kSilu);
  EXPECT_EQ((*swish)->config().activation_origin, ActivationOrigin::kMetadata);
  ImportOptions relu;
  relu.activation = Activation::kRelu;
  const auto flag = OpenChanged([](TinyFolder& f) { f.config["hidden_act"] = "\"gelu\""; }, relu);
  ASSERT_TRUE(flag.ok()) << flag.status();
  EXPECT_EQ((*flag)->config().activation, Activation::kRelu);
  EXPECT_EQ((*flag)->config().activation_origin, ActivationOrigin::kFlag);
}

TEST_F(HfSourceTest, Qwen2WindowCountsOnlyIfSwitchedOn) {
  const auto off = OpenChanged([](TinyFolder& f) { f.config["sliding_window"] = "16"; });
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_EQ((*off)->config().context_length, 64u);
  EXPECT_EQ((*off)->config().attention_window, 0u);
  const auto on = OpenChanged([](TinyFolder& f) {
    f.config["sliding_window"] = "16";
    f.config["use_sliding_window"] = "true";
  });
  ASSERT_TRUE(on.ok()) << on.status();
  EXPECT_EQ((*on)->config().context_length, 16u);
  EXPECT_EQ((*on)->config().attention_window, 16u);
}

TEST_F(HfSourceTest, RopeScalingBecomesDivisors) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const auto linear =
        OpenChanged([&](TinyFolder& f) { f.config[key] = R"({"type":"linear","factor":4.0})"; });
    ASSERT_TRUE(linear.ok()) << linear.status();
    EXPECT_THAT(SourceFloats(**linear, "rope_freqs.weight"), ElementsAre(4, 4, 4, 4));
    const auto none = OpenChanged(
        [&](TinyFolder& f) { f.config[key] = R"({"rope_type":"default","rope_theta":50000})"; });
    ASSERT_TRUE(none.ok()) << none.status();
    EXPECT_EQ((*none)->Find("rope_freqs.weight"), nullptr);
  }
  const auto llama3 = OpenChanged([](TinyFolder& f) {
    f.config["rope_scaling"] =
        R"({"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
        R"("original_max_position_embeddings":64})";
  });
  ASSERT_TRUE(llama3.ok()) << llama3.status();
  // Wavelengths 6.28, 62.8, 628 and 6283 tokens of 64: 10.2, 1.02, 0.1 and 0.01 turns.
  const auto divisors = SourceFloats(**llama3, "rope_freqs.weight");
  ASSERT_EQ(divisors.size(), 4u);
  EXPECT_EQ(divisors[0], 1.0f);
  const double share = (64 / (2 * std::numbers::pi * 10) - 1.0) / 3.0;
  EXPECT_NEAR(divisors[1], 1.0 / ((1.0 - share) / 8.0 + share), 1e-5);
  EXPECT_EQ(divisors[2], 8.0f);
  EXPECT_EQ(divisors[3], 8.0f);
}

TEST_F(HfSourceTest, TheObjectThatGivesTheRopeTypeGivesItsParameters) {
  const auto both = OpenChanged([](TinyFolder& f) {
    f.config["rope_parameters"] = R"({"rope_theta":50000})";
    f.config["rope_scaling"] = R"({"rope_type":"linear","factor":2.0})";
  });
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ((*both)->config().rope_base, 50000.0f);
  EXPECT_THAT(SourceFloats(**both, "rope_freqs.weight"), ElementsAre(2, 2, 2, 2));
}

TEST_F(HfSourceTest, RotationsThatWouldBePassedOverAreRefused) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  const auto invalid = absl::StatusCode::kInvalidArgument;
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    ExpectConfigRefused(key, R"({"rope_type":"default","partial_rotary_factor":0.5})",
                        unimplemented, "partial_rotary_factor");
    ExpectConfigRefused(key, R"({"full_attention":{"rope_type":"default"}})", unimplemented,
                        "\"full_attention\"");
    ExpectConfigRefused(key, R"({"factor":8.0})", invalid, "no rope_type");
    ExpectConfigRefused(key, R"({"rope_type":7,"factor":8.0})", invalid, "rope_type");
    ExpectConfigRefused(key, R"(["linear"])", invalid, key);
  }
}

TEST(Llama3RopeTest, DivisorsRiseFromOneToTheFactorWithoutSteps) {
  const auto divisors = Llama3RopeDivisors({8, 1, 4, 8192}, 500000.0, 128);
  ASSERT_EQ(divisors.size(), 64u);
  EXPECT_EQ(divisors.front(), 1.0f);
  EXPECT_EQ(divisors.back(), 8.0f);
  for (size_t i = 1; i < divisors.size(); ++i) {
    EXPECT_GE(divisors[i], divisors[i - 1]);
    EXPECT_LT(divisors[i], 2.5f * divisors[i - 1]);
  }
}

TEST_F(HfSourceTest, OtherModelTypesAreRefusedByName) {
  for (const char* type : {"minicpm", "turbosparsemixtral", "persimmon", "gemma2", "mixtral", ""}) {
    ExpectConfigRefused("model_type", absl::StrCat("\"", type, "\""),
                        absl::StatusCode::kUnimplemented, absl::StrCat("\"", type, "\""));
  }
}

TEST_F(HfSourceTest, WhatWouldChangeTheTextIsRefusedByName) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  ExpectConfigRefused("num_local_experts", "8", unimplemented, "num_local_experts");
  ExpectConfigRefused("quantization_config", "{}", unimplemented, "quantization_config");
  ExpectConfigRefused("partial_rotary_factor", "0.5", unimplemented, "partial_rotary_factor");
  for (const char* kind : {"yarn", "dynamic", "longrope"}) {
    ExpectConfigRefused("rope_scaling", absl::StrCat(R"({"rope_type":")", kind, R"("})"),
                        unimplemented, kind);
  }
  for (const char* name :
       {"model.layers.0.self_attn.o_proj.bias", "model.layers.1.mlp.up_proj.bias",
        "model.layers.0.self_attn.q_norm.weight", "score.weight",
        "model.layers.2.input_layernorm.weight"}) {
    ExpectRefused([&](TinyFolder& f) { f.tensors[name] = {{1}, {0}}; }, unimplemented, name);
  }
  ExpectConfigRefused("hidden_act", "\"gelu\"", absl::StatusCode::kInvalidArgument, "gelu");
  ExpectConfigRefused("hidden_act", "\"fatrelu\"", absl::StatusCode::kInvalidArgument, "threshold");
}

TEST_F(HfSourceTest, ConfigFieldsAreTypeAndRangeChecked) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  for (const char* key :
       {"hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "max_position_embeddings"}) {
    for (const char* value : {"0", "-1", "4294967296", "1e3", "\"32\"", "[32]", "null", "true"}) {
      ExpectConfigRefused(key, value, invalid, "config.json");
    }
  }
  for (const char* key : {"rms_norm_eps", "rope_theta"}) {
    for (const char* value : {"0", "-1", "1e400", "\"1\""}) {
      ExpectConfigRefused(key, value, invalid, "config.json");
    }
  }
  ExpectConfigRefused("vocab_size", "9", invalid, "vocab_size is 9");
  ExpectConfigRefused("head_dim", "7", invalid, "head dimension");
  ExpectConfigRefused("rope_scaling", "[]", invalid, "rope_scaling");
  ExpectConfigRefused("rope_scaling", R"({"type":"linear"})", invalid, "factor");
  ExpectConfigRefused("rope_scaling", R"({"type":"llama3","factor":8})", invalid, "llama3");
  ExpectConfigRefused("tie_word_embeddings", "1", invalid, "tie_word_embeddings");
  ExpectConfigRefused("x", "}", invalid, "not valid JSON");
}

TEST_F(HfSourceTest, MissingAndMisshapenTensorsAreNamedAsTheFolderNamesThem) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  ExpectRefused([&](TinyFolder& f) { f.tensors.erase(up); }, invalid, up);
  ExpectRefused([&](TinyFolder& f) { f.tensors[up].shape = {32, 44}; }, invalid, up);
  ExpectRefused([](TinyFolder& f) { f.tensors.erase("lm_head.weight"); }, invalid,
                "lm_head.weight");
  ExpectRefused([](TinyFolder& f) { f.tensors.erase("model.embed_tokens.weight"); }, invalid,
                "model.embed_tokens.weight");
}

TEST_F(HfSourceTest, StoredRotationFrequenciesAreLeftOutAndNamed) {
  const auto source = OpenChanged([](TinyFolder& f) {
    for (int layer = 0; layer < 2; ++layer) {
      f.tensors[absl::StrCat("model.layers.", layer, ".self_attn.rotary_emb.inv_freq")] = {
          {4}, {1, 0.1f, 0.01f, 0.001f}};
    }
  });
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->warnings(), ::testing::Contains(HasSubstr("inv_freq")));
}

TEST_F(HfSourceTest, EmbeddingRowsBeyondTheVocabularyArePadded) {
  const auto source = OpenChanged([](TinyFolder& f) {
    f.config["vocab_size"] = "10";
    for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      f.tensors[name].shape[0] = 10;
      f.tensors[name].values.resize(10 * 32);
    }
  });
  ASSERT_TRUE(source.ok()) << source.status();
  ASSERT_EQ((*source)->tokenizer().tokens.size(), 10u);
  EXPECT_EQ((*source)->tokenizer().types[9], TokenType::kUnused);
}

TEST_F(HfSourceTest, MissingShardIsNamedWithItsPlace) {
  TinyFolder().Write(folder_, 3);
  std::filesystem::remove(folder_ + "/model-00002-of-00003.safetensors");
  const absl::Status status = OpenModelSource(folder_, {}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("shard 2 of 3 is missing: model-00002-of-00003.safetensors"));
}

TEST_F(HfSourceTest, IndexAndShardsMustAgree) {
  TinyFolder().Write(folder_, 2);
  const std::string first = folder_ + "/model-00001-of-00002.safetensors";
  const std::string second = folder_ + "/model-00002-of-00002.safetensors";
  const std::string bytes = ReadFile(second);
  std::filesystem::copy_file(first, second, std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(absl::IsDataLoss(OpenModelSource(folder_, {}).status()));
  WriteFile(second, bytes.substr(0, bytes.size() - 1));
  EXPECT_TRUE(absl::IsDataLoss(OpenModelSource(folder_, {}).status()));
  WriteFile(second, bytes);
  EXPECT_TRUE(OpenModelSource(folder_, {}).ok());
}

TEST_F(HfSourceTest, TheSingleFileGoesBeforeTheIndexAndThisIsSaid) {
  TinyFolder().Write(folder_);
  WriteFile(folder_ + "/model.safetensors.index.json", "left over");
  const auto source = OpenModelSource(folder_, {});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_THAT((*source)->warnings(),
              ::testing::Contains(HasSubstr("model.safetensors.index.json was ignored")));
}

TEST_F(HfSourceTest, StrayFilesAreIgnored) {
  TinyFolder().Write(folder_);
  WriteFile(folder_ + "/model-00001-of-00009.safetensors", "stray");
  WriteFile(folder_ + "/README.md", "stray");
  const auto source = OpenModelSource(folder_, {});
  EXPECT_TRUE(source.ok()) << source.status();
}

TEST_F(HfSourceTest, FoldersThatHoldNoModelSayWhatIsMissing) {
  const auto message = [&] { return std::string(OpenModelSource(folder_, {}).status().message()); };
  EXPECT_THAT(message(), HasSubstr("without config.json"));
  TinyFolder().Write(folder_);
  std::filesystem::remove(folder_ + "/tokenizer.json");
  EXPECT_THAT(message(), HasSubstr("tokenizer"));
  std::filesystem::remove(folder_ + "/model.safetensors");
  EXPECT_THAT(message(), HasSubstr("model.safetensors.index.json"));
  WriteFile(folder_ + "/pytorch_model.bin", "PK");
  EXPECT_THAT(message(), HasSubstr("pickle"));
  WriteFile(folder_ + "/config.json", "<html>");
  EXPECT_THAT(message(), HasSubstr("config.json"));
}

}  // namespace
}  // namespace sluice
