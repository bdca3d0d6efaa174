// `sluice synth`: generated models of real size, for benchmarks where no trained model may be had.
//
// The file is a GGUF that any reader of the `llama` architecture loads. Its weights are random but
// for a structure that is planted so that it stays what it was while decoding (see synth_plan.h):
// how many FFN neurons fire, how unevenly, which of them together, and how far a token's set
// resembles the one before. The text is babble, and the file says in its name and in the key
// `sluice.generated` that it was generated.
#ifndef SLUICE_LAYOUT_SYNTH_H_
#define SLUICE_LAYOUT_SYNTH_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "layout/source_type.h"

namespace sluice {

struct SynthShape {
  std::string_view name;
  uint32_t d_model = 0;
  uint32_t d_ff = 0;
  uint32_t n_layers = 0;
  uint32_t n_heads = 0;
  uint32_t n_kv_heads = 0;
  uint32_t vocab_size = 0;
};

// tiny (for tests), 1b, 3b, 7b.
std::span<const SynthShape> SynthPresets();
// InvalidArgument listing the presets.
absl::StatusOr<SynthShape> FindSynthPreset(std::string_view name);
// "q4_0", "f16", "f32": the type of all matrices; norms are always F32.
absl::StatusOr<SourceType> ParseSynthType(std::string_view name);

struct SynthOptions {
  SynthShape shape;
  SourceType type = SourceType::kQ4_0;
  uint64_t seed = 1;
  // Mean share of a layer's neurons that fire for a token, 0.005 .. 0.5.
  double active = 0.10;
  // Heat: the neuron of rank k fires with a probability in proportion to k^-zipf, at most 0.98;
  // 0 .. 3. The default gives 80 % of all firings to 26 % of the neurons (at 10 % active).
  double zipf = 1.25;
  // Neurons of a group tend to fire together; 0 for independent neurons. Default: d_ff / 64.
  std::optional<uint32_t> groups;
  // Of the variance of a gate, the share that it has in common with the others of its group; 0 ..
  // 0.99. With the default a cold neuron is active in 19 % of the cases in which another of its
  // group is, as published for real models; with 0.95 groups are clusters that an order of neurons
  // can find.
  double group_correlation = 0.5;
  // Of the cold neurons (those that fire for at most half of the tokens) that fire for a token, the
  // share that fired for the token before. Heat alone gives about 0.16, and what can be reached
  // ends near 0.63; outside of that InvalidArgument names the range. Default: 0.5, or the nearest
  // that can be reached.
  std::optional<double> persistence;
};

struct SynthWriteOptions {
  bool overwrite = false;
  uint32_t n_threads = 2;  // any number gives the same bytes
  // Called now and then with bytes written so far and in all; false ends the run with Cancelled.
  std::function<bool(uint64_t, uint64_t)> progress = nullptr;
};

class SynthPlan;

// Writes the planned model to `path`; less than 64 MiB of memory whatever the model's size. Returns
// the size of the file.
absl::StatusOr<uint64_t> WriteSynthModel(const SynthPlan& plan, const std::string& path,
                                         const SynthWriteOptions& options);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_SYNTH_H_
