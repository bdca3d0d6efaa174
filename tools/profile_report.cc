#include "tools/profile_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

ProfileLayer DescribeLayer(const ActivationProfile& profile, const SluiceFile& file,
                           uint32_t layer) {
  std::vector<uint32_t> in_source(profile.n_neurons()), in_file(profile.n_neurons());
  std::iota(in_source.begin(), in_source.end(), 0u);
  for (uint32_t p = 0; p < profile.n_neurons(); ++p) in_file[file.NeuronAt(layer, p)] = p;
  ProfileLayer l;
  l.sparsity = Sparsity(profile, layer);
  l.overlap = profile.overlap(layer);
  l.cold = MeasureCoactivation(profile, layer);
  l.run_in_source = MeanRun(profile.held_out(), layer, in_source);
  l.run_in_file = MeanRun(profile.held_out(), layer, in_file);
  l.curve = FrequencyCurve(profile.counts(layer));
  l.neurons_for_80 = l.curve.NeuronsFor(0.8);
  if (!profile.thresholds().empty()) l.threshold = profile.thresholds()[layer];
  return l;
}

void AddToMean(const ProfileLayer& l, double share, ProfileLayer* mean) {
  mean->sparsity += share * l.sparsity;
  mean->overlap += share * l.overlap;
  mean->run_in_source += share * l.run_in_source;
  mean->run_in_file += share * l.run_in_file;
  const uint64_t n_pairs = mean->cold.n_pairs + l.cold.n_pairs;
  if (n_pairs == 0) return;
  mean->cold.mean = (mean->cold.mean * static_cast<double>(mean->cold.n_pairs) +
                     l.cold.mean * static_cast<double>(l.cold.n_pairs)) /
                    static_cast<double>(n_pairs);
  mean->cold.n_pairs = n_pairs;
  for (uint32_t b = 0; b < Coactivation::kBins; ++b) mean->cold.pairs[b] += l.cold.pairs[b];
}

Json LayerJson(const ProfileLayer& l) {
  const auto if_known = [](bool known, double value) { return known ? Json(value) : Json(); };
  return {{"sparsity", l.sparsity},
          {"overlap", l.overlap},
          {"neurons_for_80_percent", l.neurons_for_80},
          {"cold_coactivation", if_known(l.cold.n_pairs > 0, l.cold.mean)},
          {"mean_run_in_source_order", if_known(l.run_in_source > 0, l.run_in_source)},
          {"mean_run_in_file_order", if_known(l.run_in_file > 0, l.run_in_file)},
          {"threshold", if_known(l.threshold > 0, l.threshold)}};
}

std::string Row(const std::string& name, const ProfileLayer& l) {
  const auto if_known = [](bool known, const std::string& value) { return known ? value : "-"; };
  return absl::StrFormat("%6s %8.2f%% %8.2f%% %9.2f%% %10s %8s %8s\n", name, 100 * l.sparsity,
                         100 * l.overlap, 100 * l.neurons_for_80,
                         if_known(l.cold.n_pairs > 0, absl::StrFormat("%.2f%%", 100 * l.cold.mean)),
                         if_known(l.run_in_source > 0, absl::StrFormat("%.2f", l.run_in_source)),
                         if_known(l.run_in_file > 0, absl::StrFormat("%.2f", l.run_in_file)));
}

std::vector<uint32_t> AllCounts(const ActivationProfile& profile) {
  std::vector<uint32_t> counts;
  for (uint32_t l = 0; l < profile.n_layers(); ++l) {
    counts.insert(counts.end(), profile.counts(l).begin(), profile.counts(l).end());
  }
  return counts;
}

}  // namespace

ProfileReport DescribeProfile(const ActivationProfile& profile, const SluiceFile& file) {
  ProfileReport report;
  report.n_sequences = static_cast<uint32_t>(profile.sequences().size());
  report.n_train = profile.n_train_tokens();
  report.n_held_out = profile.n_held_out_tokens();
  report.n_train_kept = profile.train().n_tokens();
  report.n_held_out_kept = profile.held_out().n_tokens();
  report.curve = FrequencyCurve(AllCounts(profile));
  for (const ProfileSequence& s : profile.sequences()) {
    report.sequence_tokens = std::max(report.sequence_tokens, s.n_tokens);
  }
  for (uint32_t l = 0; l < profile.n_layers(); ++l) {
    report.layers.push_back(DescribeLayer(profile, file, l));
    AddToMean(report.layers.back(), 1.0 / profile.n_layers(), &report.mean);
    for (uint32_t p = 0; p < profile.n_neurons(); ++p) {
      report.in_source_order = report.in_source_order && file.NeuronAt(l, p) == p;
    }
  }
  report.mean.neurons_for_80 = report.curve.NeuronsFor(0.8);
  return report;
}

std::string ProfileTable(const ProfileReport& report) {
  std::string out = absl::StrFormat(
      "model     %s\ntexts     %s\ntokens    %u in %u sequences of at most %u; %u of them held "
      "out\n"
      "profile   %s\n",
      report.model, absl::StrJoin(report.texts, ", "), report.n_train + report.n_held_out,
      report.n_sequences, report.sequence_tokens, report.n_held_out, report.out);
  absl::StrAppendFormat(
      &out,
      "\nMeasured on the training tokens; runs on the held-out ones: mean number of active neurons "
      "side by side,\nin the order of the source model and in that of the file%s. Overlap: active "
      "neurons that were active for the\ntoken before, too. Cold: how likely a neuron that is "
      "active "
      "for at most %.0f %% of the tokens is active\nif another one is.\n%6s %9s %9s %10s %10s %8s "
      "%8s\n",
      report.in_source_order ? " (the same)" : "", 100 * kColdNeuronShare, "layer", "sparse",
      "overlap", "80% from", "cold", "run src", "run file");
  for (size_t l = 0; l < report.layers.size(); ++l) {
    out += Row(absl::StrCat(l), report.layers[l]);
  }
  return out + Row("all", report.mean);
}

std::string ProfileJson(const ProfileReport& report) {
  Json layers = Json::array();
  for (const ProfileLayer& l : report.layers) layers.push_back(LayerJson(l));
  const Json document = {{"model", report.model},
                         {"texts", report.texts},
                         {"profile", report.out},
                         {"text_tokens", report.n_text_tokens},
                         {"sequences", report.n_sequences},
                         {"sequence_tokens", report.sequence_tokens},
                         {"train_tokens", report.n_train},
                         {"held_out_tokens", report.n_held_out},
                         {"train_tokens_with_sets", report.n_train_kept},
                         {"held_out_tokens_with_sets", report.n_held_out_kept},
                         {"in_source_order", report.in_source_order},
                         {"model_mean", LayerJson(report.mean)},
                         {"layers", std::move(layers)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice
