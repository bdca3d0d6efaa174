#include "tests/predicted_model.h"

#include <algorithm>
#include <numeric>
#include <random>

namespace sluice {

MadeUpPredictors::MadeUpPredictors(const ModelConfig& config, uint64_t seed, uint32_t n_outputs) {
  if (n_outputs == 0) n_outputs = config.d_ff;
  std::mt19937_64 rng(seed);
  const auto random = [&](size_t n) {
    std::vector<float> v(n);
    for (float& x : v) x = static_cast<float>(rng() % 2001) / 1000.0f - 1.0f;
    return v;
  };
  for (uint32_t l = 0; l < config.n_layers; ++l) {
    const uint32_t rank = l % 2 == 0 ? 32 : 64;
    fc1.push_back(random(size_t{rank} * config.d_model));
    fc2.push_back(random(size_t{n_outputs} * rank));
  }
  for (uint32_t l = 0; l < config.n_layers; ++l) {
    weights.push_back({l % 2 == 0 ? 32u : 64u, fc1[l], fc2[l]});
  }
}

std::vector<std::vector<uint32_t>> ShuffledOrder(const ModelConfig& config, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::vector<std::vector<uint32_t>> order(config.n_layers);
  for (auto& layer : order) {
    layer.resize(config.d_ff);
    std::iota(layer.begin(), layer.end(), 0);
    for (size_t i = layer.size() - 1; i > 0; --i) std::swap(layer[i], layer[rng() % (i + 1)]);
  }
  return order;
}

ActivityRecord MadeUpActivity(const ModelConfig& config, uint64_t seed) {
  std::mt19937_64 rng(seed);
  ActivityRecord activity;
  activity.n_tokens = 100;
  activity.n_hot.assign(config.n_layers, 0);
  for (size_t i = 0; i < size_t{config.n_layers} * config.d_ff; ++i) {
    activity.frequency.push_back(static_cast<uint16_t>(rng() % 20000));
  }
  for (const uint32_t percent : {2, 5, 10, 20, 40, 60, 80}) {
    activity.placements.emplace_back(config.n_layers, config.d_ff * percent / 100);
  }
  return activity;
}

PredictedModel::PredictedModel(const SluiceFile& plain, PredictorInput input, float threshold,
                               bool shuffled, std::optional<MadeUpHeads> heads) {
  const MadeUpPredictors predictors(plain.config());
  const auto order = ShuffledOrder(plain.config());
  RelayoutOptions options;
  options.predictors = predictors.weights;
  options.predictor_record.input = input;
  options.predictor_record.thresholds.assign(plain.config().n_layers, threshold);
  if (shuffled) options.order = order;
  const MadeUpPredictors of_heads(plain.config(), 11, plain.config().n_heads);
  if (heads) {
    options.head_predictors = of_heads.weights;
    options.head_predictor_record.use.input = heads->input;
    options.head_predictor_record.use.thresholds.assign(plain.config().n_layers, heads->threshold);
    options.head_predictor_record.label_share = 0.9f;
  }
  const ActivityRecord activity = MadeUpActivity(plain.config());
  options.activity = &activity;
  Must(Relayout(plain, dir_.File("predicted.sluice"), options));
  file_ = Must(SluiceFile::Open(dir_.File("predicted.sluice")));
}

}  // namespace sluice
