#include "tools/perplexity_report.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/predictor_meter.h"
#include "tools/generate_report.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

// How much higher the perplexity is for such a difference of mean NLLs.
double Percent(double nll_difference) { return 100 * std::expm1(nll_difference); }

Json QualityJson(const PredictorQuality& q) {
  return {{"recall", q.recall()},
          {"precision", q.precision()},
          {"true_density", q.true_density()},
          {"predicted_density", q.density()}};
}

// Null where they were not measured.
Json PredictorsJson(const std::vector<PredictorQuality>& of_layers) {
  if (of_layers.empty()) return nullptr;
  Json layers = Json::array();
  for (const PredictorQuality& q : of_layers) layers.push_back(QualityJson(q));
  Json json = QualityJson(SumOf(of_layers));
  json["layers"] = std::move(layers);
  return json;
}

// Null where there are none.
Json JsonShare(uint64_t part, uint64_t of) {
  return of > 0 ? Json(static_cast<double>(part) / static_cast<double>(of)) : Json(nullptr);
}

std::string RunName(const PerplexityRun& run) {
  return absl::StrCat(DecodeModeName(run.plan.request.mode),
                      run.plan.request.predicts_heads() ? ", heads too" : "");
}

Json RunJson(const PerplexityRun& run) {
  const TextScores& s = run.scores;
  const MeanEstimate nll = EstimateMean(s.nll);
  const DecoderStats& d = s.decoder;
  Json budget = nullptr;
  if (run.plan.request.budget != UINT64_MAX) budget = run.plan.request.budget;
  return {{"mode", DecodeModeName(run.plan.request.mode)},
          {"perplexity", std::exp(nll.mean)},
          {"perplexity_error", std::exp(nll.mean) * nll.standard_error},
          {"perplexity_95", {std::exp(nll.low()), std::exp(nll.high())}},
          {"nll", nll.mean},
          {"nll_error", nll.standard_error},
          {"scored_tokens", s.nll.size()},
          {"windows", s.n_windows},
          {"tokens", s.n_tokens},
          {"ms", static_cast<double>(s.wall_ns) / 1e6},
          {"tokens_per_second", s.tokens_per_second()},
          {"tokens_together", run.plan.chunk},
          {"active_share", JsonShare(d.active_neurons, d.gated_neurons)},
          {"firing_share", JsonShare(d.firing_neurons, d.gated_neurons)},
          {"predict_heads", run.plan.request.predicts_heads()},
          {"head_share", JsonShare(d.chosen_heads, d.heads)},
          {"predictors", PredictorsJson(run.layers)},
          {"head_predictors", PredictorsJson(run.head_layers)},
          {"flash_bytes", d.flash_bytes},
          {"budget_bytes", std::move(budget)},
          {"planned_bytes", run.plan.total}};
}

// What does not exist for a single run is null.
Json ComparisonJson(const PerplexityReport& report) {
  if (report.runs.size() < 2) return nullptr;
  const Comparison c = Compare(report.runs[0].scores, report.runs[1].scores);
  const MeanEstimate& d = c.nll_difference;
  return {{"mode", DecodeModeName(report.runs[0].plan.request.mode)},
          {"against", DecodeModeName(report.runs[1].plan.request.mode)},
          {"nll_difference", d.mean},
          {"nll_difference_error", d.standard_error},
          {"perplexity_percent", Percent(d.mean)},
          {"perplexity_percent_95", {Percent(d.low()), Percent(d.high())}},
          {"same_greedy_share", c.same_greedy}};
}

// `what` of a layer is predicted, as a heading of five letters.
std::string PredictorTable(const char* what, const std::vector<PredictorQuality>& layers) {
  std::string out = absl::StrCat(what, "    recall  precision    active  predicted\n");
  const auto add = [&](const std::string& name, const PredictorQuality& q) {
    absl::StrAppendFormat(&out, "%5s  %6.2f %%   %6.2f %%  %6.2f %%   %6.2f %%\n", name,
                          100 * q.recall(), 100 * q.precision(), 100 * q.true_density(),
                          100 * q.density());
  };
  for (size_t l = 0; l < layers.size(); ++l) add(absl::StrCat(l), layers[l]);
  add("all", SumOf(layers));
  return out;
}

}  // namespace

std::string PerplexityText(const TextScores& scores) {
  const MeanEstimate nll = EstimateMean(scores.nll);
  return absl::StrFormat("%.4f (95 %%: %.4f .. %.4f)", std::exp(nll.mean), std::exp(nll.low()),
                         std::exp(nll.high()));
}

std::string PerplexityTable(const PerplexityReport& report) {
  std::string out =
      absl::StrFormat("%s on %s: %u tokens, windows of %u, of which the second half is scored\n",
                      report.model, report.text, report.text_tokens, report.window);
  for (const PerplexityRun& run : report.runs) {
    const TextScores& s = run.scores;
    absl::StrAppendFormat(&out, "%s: perplexity %s; %u tokens scored in %u windows; %.2f tokens/s",
                          RunName(run), PerplexityText(s), s.nll.size(), s.n_windows,
                          s.tokens_per_second());
    if (s.decoder.gated_neurons > 0) {
      absl::StrAppendFormat(
          &out, "; %.1f %% of neurons %s",
          100 * static_cast<double>(s.decoder.active_neurons) /
              static_cast<double>(s.decoder.gated_neurons),
          run.plan.request.mode == DecodeMode::kPredicted ? "predicted" : "active");
    }
    if (s.decoder.heads > 0) {
      absl::StrAppendFormat(
          &out, ", %.1f %% of heads",
          100 * static_cast<double>(s.decoder.chosen_heads) / static_cast<double>(s.decoder.heads));
    }
    out += "\n";
  }
  for (const PerplexityRun& run : report.runs) {
    if (!run.layers.empty()) out += PredictorTable("layer", run.layers);
    if (!run.head_layers.empty()) out += PredictorTable("heads", run.head_layers);
  }
  if (report.runs.size() < 2) return out;
  const Comparison c = Compare(report.runs[0].scores, report.runs[1].scores);
  const MeanEstimate& d = c.nll_difference;
  absl::StrAppendFormat(
      &out,
      "%s against %s: perplexity %+.3f %% (95 %%: %+.3f .. %+.3f); the same greedy token at "
      "%.2f %% of positions\n",
      RunName(report.runs[0]), RunName(report.runs[1]), Percent(d.mean), Percent(d.low()),
      Percent(d.high()), 100 * c.same_greedy);
  return out;
}

std::string PerplexityJson(const PerplexityReport& report) {
  Json runs = Json::array();
  for (const PerplexityRun& run : report.runs) runs.push_back(RunJson(run));
  const Json document = {{"model", report.model},
                         {"version", SLUICE_VERSION},
                         {"text", report.text},
                         {"text_tokens", report.text_tokens},
                         {"window", report.window},
                         {"runs", std::move(runs)},
                         {"comparison", ComparisonJson(report)},
                         {"peak_rss_bytes", PeakRss()}};
  // A path that is not UTF-8 must not spoil the document.
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace sluice
