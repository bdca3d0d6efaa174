// GGUF models as ModelSource: the config, the check of every tensor against it, refusals by name.
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/gguf_source.h"
#include "tests/import_test_models.h"
#include "tests/test_paths.h"

namespace sluice {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

ImportOptions Flags(std::optional<Activation> activation, std::optional<float> threshold) {
  ImportOptions options;
  options.activation = activation;
  options.activation_threshold = threshold;
  return options;
}

class GgufSourceTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<ModelSource>> Open(const TinyGguf& model,
                                                    const ImportOptions& options = {}) {
    model.Write(path_);
    return OpenModelSource(path_, options);
  }
  // A llama model after `change`.
  absl::StatusOr<std::unique_ptr<ModelSource>> OpenChanged(
      const std::function<void(TinyGguf&)>& change, const ImportOptions& options = {}) {
    TinyGguf model;
    change(model);
    return Open(model, options);
  }
  void ExpectRefused(const std::function<void(TinyGguf&)>& change, absl::StatusCode code,
                     const std::string& what) {
    const absl::Status status = OpenChanged(change).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("tiny.gguf"), HasSubstr(what)));
  }

  TempDir dir_;
  std::string path_ = dir_.File("tiny.gguf");
};

TEST_F(GgufSourceTest, LlamaModelGivesItsConfigAndTensors) {
  const TinyGguf model;
  const auto source = Open(model);
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& c = (*source)->config();
  EXPECT_EQ(c.architecture, "llama");
  EXPECT_EQ(c.name, "tiny");
  EXPECT_EQ(c.n_layers, 2u);
  EXPECT_EQ(c.d_model, 32u);
  EXPECT_EQ(c.d_ff, 44u);
  EXPECT_EQ(c.n_heads, 4u);
  EXPECT_EQ(c.n_kv_heads, 2u);
  EXPECT_EQ(c.head_dim, 8u);
  EXPECT_EQ(c.vocab_size, 8u);
  EXPECT_EQ(c.context_length, 64u);
  EXPECT_EQ(c.norm_epsilon, 1e-5f);
  EXPECT_EQ(c.rope_base, 10000.0f);
  EXPECT_EQ(c.rope_style, RopeStyle::kInterleaved);
  EXPECT_EQ(c.activation, Activation::kSilu);
  EXPECT_EQ(c.activation_origin, ActivationOrigin::kAssumed);
  EXPECT_FALSE(c.tied_head);
  EXPECT_FALSE(c.qkv_bias);
  EXPECT_EQ((*source)->tokenizer().tokens, model.tokens);
  EXPECT_EQ((*source)->tensors().size(), model.tensors.size());
  for (const auto& [name, tensor] : model.tensors) {
    EXPECT_EQ(SourceFloats(**source, name), tensor.values) << name;
  }
  EXPECT_EQ((*source)->Find("rope_freqs.weight"), nullptr);
}

TEST_F(GgufSourceTest, NamesFromTheFileAreShownWithoutControlCharactersAndCut) {
  const auto source = OpenChanged(
      [](TinyGguf& m) { m.strings["general.name"] = "evil\x1b[2J\n" + std::string(1000, 'x'); });
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->config().name, "evil\\x1b[2J\\x0a" + std::string(256 - 15, 'x'));
  ExpectRefused(
      [](TinyGguf& m) {
        m.tensors["a\x1b[2Jb"] = {{1}, {0}};
      },
      absl::StatusCode::kUnimplemented, "\"a\\x1b[2Jb\"");
}

TEST_F(GgufSourceTest, Qwen2HasBiasesAndRotatesHalves) {
  const auto source = Open(TinyGguf("qwen2"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE((*source)->config().qkv_bias);
  EXPECT_EQ((*source)->config().rope_style, RopeStyle::kHalf);
}

TEST_F(GgufSourceTest, OptionalKeysAreRead) {
  const auto source = OpenChanged([](TinyGguf& m) {
    m.tensors.erase("output.weight");
    m.floats["llama.rope.freq_base"] = 500000.0f;
    m.ints["llama.rope.dimension_count"] = 8;
    m.ints["llama.vocab_size"] = 8;
    m.ints["llama.attention.key_length"] = 8;
    m.ints["llama.attention.value_length"] = 8;
    m.ints["llama.expert_count"] = 0;
    m.ints.erase("llama.feed_forward_length");
    m.int_arrays["llama.feed_forward_length"] = {44, 44};
  });
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_TRUE((*source)->config().tied_head);
  EXPECT_EQ((*source)->config().rope_base, 500000.0f);
  EXPECT_EQ((*source)->config().d_ff, 44u);
}

TEST_F(GgufSourceTest, SharedModelOpens) {
  const auto path = SharedPath("models/stories260K/stories260K.gguf");
  if (!path) GTEST_SKIP() << "the shared folder is not there (set SLUICE_SHARED)";
  const auto source = OpenModelSource(*path, {});
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->config().d_ff, 172u);
  EXPECT_EQ((*source)->config().vocab_size, 512u);
  EXPECT_TRUE((*source)->config().tied_head);
}

TEST_F(GgufSourceTest, AVocabularyWithoutTensorsIsNotAModel) {
  const auto path = SharedPath("tokenizers/ggml-vocab-llama-spm.gguf");
  if (!path) GTEST_SKIP() << "the shared folder is not there (set SLUICE_SHARED)";
  EXPECT_THAT(std::string(OpenModelSource(*path, {}).status().message()),
              HasSubstr("token_embd.weight"));
}

TEST_F(GgufSourceTest, ActivationComesFromFlagThenMetadataThenIsAssumed) {
  const auto with_key = [](TinyGguf& m) {
    m.strings[kActivationKey] = "fatrelu";
    m.floats[kActivationThresholdKey] = 0.25f;
  };
  const auto stated = OpenChanged(with_key);
  ASSERT_TRUE(stated.ok()) << stated.status();
  EXPECT_EQ((*stated)->config().activation, Activation::kFatRelu);
  EXPECT_EQ((*stated)->config().activation_threshold, 0.25f);
  EXPECT_EQ((*stated)->config().activation_origin, ActivationOrigin::kMetadata);

  const auto flag = OpenChanged(with_key, Flags(Activation::kRelu2, std::nullopt));
  ASSERT_TRUE(flag.ok()) << flag.status();
  EXPECT_EQ((*flag)->config().activation, Activation::kRelu2);
  EXPECT_EQ((*flag)->config().activation_threshold, 0.0f);
  EXPECT_EQ((*flag)->config().activation_origin, ActivationOrigin::kFlag);

  const auto threshold = OpenChanged(with_key, Flags(std::nullopt, 0.5f));
  ASSERT_TRUE(threshold.ok()) << threshold.status();
  EXPECT_EQ((*threshold)->config().activation_threshold, 0.5f);

  const auto nothing = [](TinyGguf&) {};
  EXPECT_TRUE(absl::IsInvalidArgument(
      OpenChanged(nothing, Flags(Activation::kFatRelu, std::nullopt)).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(OpenChanged(nothing, Flags(std::nullopt, 1.0f)).status()));
  const auto unknown = [](TinyGguf& m) { m.strings[kActivationKey] = "gelu"; };
  ExpectRefused(unknown, absl::StatusCode::kInvalidArgument, "\"gelu\"");
  const auto overridden = OpenChanged(unknown, Flags(Activation::kRelu, std::nullopt));
  ASSERT_TRUE(overridden.ok()) << overridden.status();
  EXPECT_EQ((*overridden)->config().activation, Activation::kRelu);
}

TEST_F(GgufSourceTest, LinearScalingBecomesDivisors) {
  const auto linear = OpenChanged([](TinyGguf& m) {
    m.strings["llama.rope.scaling.type"] = "linear";
    m.floats["llama.rope.scaling.factor"] = 4.0f;
  });
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_THAT(SourceFloats(**linear, "rope_freqs.weight"), ElementsAre(4, 4, 4, 4));

  const auto old_key = OpenChanged([](TinyGguf& m) { m.floats["llama.rope.scale_linear"] = 2.0f; });
  ASSERT_TRUE(old_key.ok()) << old_key.status();
  EXPECT_THAT(SourceFloats(**old_key, "rope_freqs.weight"), ElementsAre(2, 2, 2, 2));

  const auto no_type = OpenChanged([](TinyGguf& m) {
    m.floats["llama.rope.scaling.factor"] = 4.0f;
    m.floats["llama.rope.scale_linear"] = 2.0f;  // the newer key counts
  });
  ASSERT_TRUE(no_type.ok()) << no_type.status();
  EXPECT_THAT(SourceFloats(**no_type, "rope_freqs.weight"), ElementsAre(4, 4, 4, 4));
}

TEST_F(GgufSourceTest, NoScalingOrAFactorOfOneGivesNoDivisors) {
  const std::function<void(TinyGguf&)> cases[] = {
      [](TinyGguf& m) { m.strings["llama.rope.scaling.type"] = "linear"; },
      [](TinyGguf& m) { m.floats["llama.rope.scaling.factor"] = 0.0f; },
      [](TinyGguf& m) { m.floats["llama.rope.scaling.factor"] = 1.0f; },
      [](TinyGguf& m) { m.floats["llama.rope.scale_linear"] = 0.0f; },
      [](TinyGguf& m) {
        m.strings["llama.rope.scaling.type"] = "none";
        m.floats["llama.rope.scaling.factor"] = 4.0f;
      },
  };
  for (const auto& change : cases) {
    const auto source = OpenChanged(change);
    ASSERT_TRUE(source.ok()) << source.status();
    EXPECT_EQ((*source)->Find("rope_freqs.weight"), nullptr);
  }
}

TEST_F(GgufSourceTest, StoredDivisorsAreKeptAndMultiplied) {
  const TinyTensor freqs{{4}, {1, 2, 4, 8}, SourceType::kF16};
  const auto stored = OpenChanged([&](TinyGguf& m) { m.tensors["rope_freqs.weight"] = freqs; });
  ASSERT_TRUE(stored.ok()) << stored.status();
  EXPECT_THAT(SourceFloats(**stored, "rope_freqs.weight"), ElementsAre(1, 2, 4, 8));

  const auto both = OpenChanged([&](TinyGguf& m) {
    m.tensors["rope_freqs.weight"] = freqs;
    m.strings["llama.rope.scaling.type"] = "linear";
    m.floats["llama.rope.scaling.factor"] = 2.0f;
  });
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_THAT(SourceFloats(**both, "rope_freqs.weight"), ElementsAre(2, 4, 8, 16));
  EXPECT_EQ((*both)->Find("rope_freqs.weight")->type, SourceType::kF32);

  const auto invalid = absl::StatusCode::kInvalidArgument;
  ExpectRefused(
      [](TinyGguf& m) {
        m.tensors["rope_freqs.weight"] = {{4}, {1, 0, 1, 1}};
      },
      invalid, "divisor is 0");
  ExpectRefused(
      [](TinyGguf& m) {
        m.tensors["rope_freqs.weight"] = {{2}, {1, 1}};
      },
      invalid, "rope_freqs.weight");
}

TEST_F(GgufSourceTest, WhatWouldChangeTheTextIsRefusedByName) {
  const auto unimplemented = absl::StatusCode::kUnimplemented;
  for (const char* kind : {"yarn", "longrope", "dynamic"}) {
    ExpectRefused([&](TinyGguf& m) { m.strings["llama.rope.scaling.type"] = kind; }, unimplemented,
                  kind);
  }
  const auto refuse_int = [&](const char* key, uint32_t value, const char* what) {
    ExpectRefused([&](TinyGguf& m) { m.ints[key] = value; }, unimplemented, what);
  };
  refuse_int("llama.rope.dimension_count", 4, "rotated");
  refuse_int("llama.expert_count", 8, "expert_count");
  refuse_int("llama.attention.value_length", 4, "values of 4");
  ExpectRefused([](TinyGguf& m) { m.floats["llama.logit_scale"] = 0.5f; }, unimplemented,
                "llama.logit_scale");
  ExpectRefused([](TinyGguf& m) { m.bools["llama.use_parallel_residual"] = true; }, unimplemented,
                "use_parallel_residual");
  ExpectRefused([](TinyGguf& m) { m.bools["llama.attention.causal"] = false; }, unimplemented,
                "llama.attention.causal");
  ExpectRefused(
      [](TinyGguf& m) {
        m.ints.erase("llama.feed_forward_length");
        m.int_arrays["llama.feed_forward_length"] = {44, 88};
      },
      unimplemented, "differs from layer to layer");
  ExpectRefused([](TinyGguf& m) { m = TinyGguf("gemma"); }, unimplemented, "\"gemma\"");
  for (const char* name :
       {"blk.0.attn_q_norm.weight", "blk.1.ffn_up.bias", "blk.0.attn_output.bias", "output.bias",
        "blk.0.ffn_gate_inp.weight", "blk.2.attn_norm.weight", "blk.0.attn_q.weight2"}) {
    ExpectRefused([&](TinyGguf& m) { m.tensors[name] = {{1}, {0}}; }, unimplemented, name);
  }
}

TEST_F(GgufSourceTest, EveryTensorMustBeThereInItsShape) {
  for (const auto& [name, tensor] : TinyTensors("qwen2")) {
    if (name == "output.weight" || name == "blk.0.attn_q.bias") continue;  // decide on tying, bias
    TinyGguf without("qwen2");
    without.tensors.erase(name);
    const absl::Status missing = Open(without).status();
    EXPECT_TRUE(absl::IsInvalidArgument(missing)) << name << missing;
    EXPECT_THAT(std::string(missing.message()), HasSubstr(name));
    TinyGguf reshaped("qwen2");
    reshaped.tensors[name].shape.push_back(1);
    const absl::Status other = Open(reshaped).status();
    EXPECT_TRUE(absl::IsInvalidArgument(other)) << name << other;
    EXPECT_THAT(std::string(other.message()), HasSubstr(name));
  }
}

TEST_F(GgufSourceTest, HyperparametersAreCheckedAgainstRangesAndEachOther) {
  const auto invalid = absl::StatusCode::kInvalidArgument;
  const auto refuse = [&](const char* key, uint32_t value, const char* what) {
    ExpectRefused([&](TinyGguf& m) { m.ints[key] = value; }, invalid, what);
  };
  refuse("llama.attention.head_count", 0, "head_count");
  refuse("llama.attention.head_count_kv", 0, "KV head count");
  refuse("llama.attention.head_count_kv", 3, "not a multiple");
  refuse("llama.block_count", 0, "layer count");
  refuse("llama.block_count", 4000000000u, "layer count");
  refuse("llama.block_count", 1000, "blk.2.");
  refuse("llama.embedding_length", 4000000000u, "model width");
  refuse("llama.feed_forward_length", 1u << 31, "FFN width");
  refuse("llama.attention.key_length", 1u << 31, "");
  refuse("llama.context_length", 0, "context length");
  refuse("llama.vocab_size", 9, "has 8 rows");
  for (const float bad : {0.0f, -1.0f, std::numeric_limits<float>::quiet_NaN()}) {
    ExpectRefused([&](TinyGguf& m) { m.floats["llama.attention.layer_norm_rms_epsilon"] = bad; },
                  invalid, "epsilon");
    ExpectRefused([&](TinyGguf& m) { m.floats["llama.rope.freq_base"] = bad; }, invalid, "base");
    if (bad == 0.0f) continue;  // a factor that llama.cpp takes for 1
    ExpectRefused(
        [&](TinyGguf& m) {
          m.strings["llama.rope.scaling.type"] = "linear";
          m.floats["llama.rope.scaling.factor"] = bad;
        },
        invalid, "factor");
  }
  ExpectRefused([](TinyGguf& m) { m.tokens.push_back("d"); }, invalid, "9 tokens");
  ExpectRefused([](TinyGguf& m) { m.ints.erase("llama.block_count"); }, absl::StatusCode::kNotFound,
                "llama.block_count");
}

TEST_F(GgufSourceTest, ASlidingWindowLimitsTheContext) {
  const auto source =
      OpenChanged([](TinyGguf& m) { m.ints["llama.attention.sliding_window"] = 48; });
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->config().context_length, 48u);
  EXPECT_EQ((*source)->config().attention_window, 48u);
  EXPECT_THAT((*source)->warnings(), ElementsAre(HasSubstr("48")));
  // A window beyond the trained length still bounds what a user may ask for.
  const auto wide = OpenChanged([](TinyGguf& m) { m.ints["llama.attention.sliding_window"] = 96; });
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_EQ((*wide)->config().context_length, 64u);
  EXPECT_EQ((*wide)->config().attention_window, 96u);
}

TEST_F(GgufSourceTest, ReadsOutsideATensorAreRefused) {
  const auto source = OpenChanged([](TinyGguf& m) { m.floats["llama.rope.scale_linear"] = 2.0f; });
  ASSERT_TRUE(source.ok()) << source.status();
  std::vector<std::byte> dst(64);
  for (const char* name : {"rope_freqs.weight", "output_norm.weight"}) {
    const SourceTensor& tensor = *(*source)->Find(name);
    EXPECT_TRUE(absl::IsOutOfRange((*source)->ReadTensor(tensor, 112, dst))) << name;
    EXPECT_TRUE(absl::IsOutOfRange((*source)->ReadTensor(tensor, UINT64_MAX, dst))) << name;
  }
  const SourceTensor stranger{"stranger", SourceType::kF32, {1}};
  EXPECT_TRUE(absl::IsNotFound((*source)->ReadTensor(stranger, 0, dst)));
}

}  // namespace
}  // namespace sluice
