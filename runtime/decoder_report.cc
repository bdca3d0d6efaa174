// What a decoder says of itself: its statistics, and the paths that it took.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "runtime/decoder.h"

namespace sluice {

DecoderStats DecoderStats::operator-(const DecoderStats& before) const {
  DecoderStats d = *this;
  d.hits -= before.hits;
  d.misses -= before.misses;
  d.evictions -= before.evictions;
  d.active_neurons -= before.active_neurons;
  d.gated_neurons -= before.gated_neurons;
  d.firing_neurons -= before.firing_neurons;
  d.heads -= before.heads;
  d.chosen_heads -= before.chosen_heads;
  d.late_keys -= before.late_keys;
  d.look_ahead.reads -= before.look_ahead.reads;
  d.look_ahead.needed -= before.look_ahead.needed;
  d.look_ahead.in_time -= before.look_ahead.in_time;
  d.look_ahead.paused -= before.look_ahead.paused;
  d.skipped -= before.skipped;
  d.flash_bytes -= before.flash_bytes;
  d.flash_operations -= before.flash_operations;
  d.io_busy_ns -= before.io_busy_ns;
  d.io_retries -= before.io_retries;
  d.stall_ns -= before.stall_ns;
  d.predictor_ns -= before.predictor_ns;
  d.touched_bytes -= before.touched_bytes;
  return d;
}

DecoderStats Decoder::stats() const {
  DecoderStats s;
  for (uint32_t l = 0; l < config_.n_layers; ++l) {
    const CacheLayerStats& layer = cache_->stats(l);
    s.hits += layer.hits;
    s.misses += layer.misses;
    s.evictions += layer.evictions;
  }
  const DemandStats& demand = demand_ffn_->stats();
  s.active_neurons = demand.active_neurons;
  s.gated_neurons = demand.neurons;
  s.firing_neurons = demand.firing_neurons;
  if (look_ahead_ != nullptr) s.look_ahead = look_ahead_->stats();
  if (predicted_ffn_ != nullptr) {
    s.skipped = predicted_ffn_->n_skipped();
    s.predictor_ns = predictor_->busy_ns();
  }
  const HeadStats heads = attention_->head_stats();
  s.heads = heads.heads;
  s.chosen_heads = heads.chosen;
  s.late_keys = heads.made_later;
  s.predictor_ns += heads.predictor_ns;
  const IoStats io = io_->io_stats();
  s.flash_bytes = io.bytes;
  s.flash_operations = io.operations;
  s.io_busy_ns = io.busy_ns;
  s.io_retries = io.retries;
  s.stall_ns = io_->stall_ns();
  s.touched_bytes =
      store_->touched_bytes() + attention_->touched_kv_bytes() +
      (demand.touched_rows + stream_ffn_->touched_rows()) * file_.bundles().row_bytes();
  return s;
}

std::string Decoder::LookAheadNote() const {
  if (look_ahead_ != nullptr) return "bundles are read a layer ahead";
  if (plan_.holds_all_bundles || map_ != nullptr) return "nothing to read ahead";
  return "bundles are not read ahead";
}

std::string Decoder::HeadsNote() const {
  if (!attention_->predicts_heads()) return "";
  const uint32_t n_whole = attention_->n_whole_layers();
  if (n_whole == 0) return "; attention heads predicted too";
  return absl::StrFormat(
      "; attention heads predicted too; Q, K and V of %u of %u layers are streamed, and computed "
      "whole",
      n_whole, config_.n_layers);
}

std::string Decoder::ModeNote() const {
  switch (plan_.request.mode) {
    case DecodeMode::kDense:
      return "dense";
    case DecodeMode::kExact: {
      if (config_.sparse()) return "exact";
      const char* unused = file_.predictor() != nullptr ? "; predictors are not used" : "";
      if (file_.sparse()) {
        return absl::StrCat("exact by the file's thresholds; prompts too", unused);
      }
      return absl::StrFormat("exact (activation %s gives no exact zeros: every neuron is needed)%s",
                             ActivationName(config_.activation), unused);
    }
    case DecodeMode::kPredicted:
      return absl::StrCat("predicted; prompts dense; ", LookAheadNote(), HeadsNote());
  }
  return "?";
}

std::vector<std::string> Decoder::Notes() const {
  std::vector<std::string> notes;
  if (map_ != nullptr) {
    notes.push_back("weights: mapped, read by the kernel through the page cache");
  } else {
    notes.push_back("io: " + engine_note_ + "; " + storage_->mode_note());
    const std::string change = io_thread_->mode_change_note();
    if (!change.empty()) notes.push_back("io changed: " + change);
    notes.push_back(schedule_note_);
    notes.push_back("io thread: " + io_thread_->affinity_note());
  }
  notes.push_back(
      absl::StrFormat("kernels: %s; %d compute threads", kernels_->name, pool_->n_threads()));
  notes.push_back("mode: " + ModeNote());
  return notes;
}

}  // namespace sluice
