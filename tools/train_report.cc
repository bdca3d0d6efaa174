#include "tools/train_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "predictor/packed_predictor.h"
#include "runtime/memory_plan.h"

namespace sluice {
namespace {

uint64_t BytesOf(const TrainReport& report, const PredictorCheckpoint& layer) {
  return PackedPredictor::BytesFor(report.d_model, layer.predictor.rank, report.n_outputs);
}

struct Totals {
  PredictorQuality quality;
  uint64_t bytes = 0;
  size_t n_missed = 0;  // layers
};

Totals TotalsOf(const TrainReport& report) {
  Totals t;
  for (const PredictorCheckpoint& layer : report.layers) {
    t.quality.n_neurons += layer.quality.n_neurons;
    t.quality.n_active += layer.quality.n_active;
    t.quality.n_predicted += layer.quality.n_predicted;
    t.quality.n_hits += layer.quality.n_hits;
    t.bytes += BytesOf(report, layer);
    t.n_missed += !layer.meets_targets;
  }
  return t;
}

std::string Row(const std::string& name, const std::string& rank, const PredictorQuality& q,
                uint64_t bytes, const char* end) {
  return absl::StrFormat("%5s %5s  %6.2f %%  %6.2f %%  %6.2f %%  %6.2f %%  %5.2f  %10s%s\n", name,
                         rank, 100 * q.recall(), 100 * q.precision(), 100 * q.true_density(),
                         100 * q.density(), q.density() / q.true_density(), FormatBytes(bytes),
                         end);
}

nlohmann::json QualityJson(const PredictorQuality& q) {
  return {{"recall", q.recall()},
          {"precision", q.precision()},
          {"true_density", q.true_density()},
          {"predicted_density", q.density()}};
}

}  // namespace

std::string LayerLine(const PredictorCheckpoint& layer) {
  const PredictorQuality& q = layer.quality;
  return absl::StrFormat("layer %u: rank %u, recall %.2f %%, %.2f %% predicted, %.2f %% active",
                         layer.layer, layer.predictor.rank, 100 * q.recall(), 100 * q.density(),
                         100 * q.true_density());
}

std::string TrainTable(const TrainReport& report) {
  std::string text = absl::StrFormat(
      "%s: predictors of %s on the %s input; held-out text\n"
      "layer  rank    recall  precision    active  predicted  ratio        size\n",
      report.out, report.what, report.input);
  for (const PredictorCheckpoint& l : report.layers) {
    text += Row(absl::StrCat(l.layer), absl::StrCat(l.predictor.rank), l.quality,
                BytesOf(report, l), l.meets_targets ? "" : "  *");
  }
  const Totals t = TotalsOf(report);
  text += Row("all", "", t.quality, t.bytes, "");
  if (t.n_missed > 0) {
    absl::StrAppendFormat(&text,
                          "* more than %g %s predicted for an active one: no predictor within "
                          "the size does better at this recall; give a larger --size, a lower "
                          "--recall, more text or more --epochs\n",
                          report.density_ratio, report.what);
  }
  absl::StrAppendFormat(
      &text, "%.2f %% of the model's bytes; trained in %.0f s\n",
      100.0 * static_cast<double>(t.bytes) / static_cast<double>(report.model_bytes),
      report.seconds);
  return text;
}

std::string TrainJson(const TrainReport& report) {
  const Totals t = TotalsOf(report);
  nlohmann::json json = {
      {"out", report.out},
      {"predicts", report.what},
      {"input", report.input},
      {"targets",
       {{"recall", report.recall},
        {"density_ratio", report.density_ratio},
        {"size_share", report.share}}},
      {"seconds", report.seconds},
      {"all", QualityJson(t.quality)},
      {"bytes", t.bytes},
      {"size_share", static_cast<double>(t.bytes) / static_cast<double>(report.model_bytes)}};
  for (const PredictorCheckpoint& l : report.layers) {
    nlohmann::json layer = QualityJson(l.quality);
    layer["layer"] = l.layer;
    layer["rank"] = l.predictor.rank;
    layer["threshold"] = l.predictor.threshold;
    layer["top_k"] = l.top_k;
    layer["bytes"] = BytesOf(report, l);
    layer["meets_targets"] = l.meets_targets;
    json["layers"].push_back(layer);
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace sluice
