#include "runtime/ffn_demand.h"

#include <algorithm>
#include <utility>

#include "io/status.h"

namespace sluice {
namespace {

// Down columns that are worth a fork-join while misses are still on their way.
constexpr uint32_t kDownBatch = 64;
constexpr size_t kRowUnit = 8;  // rows that kernels like to take together
constexpr size_t kBatch = 64;   // rows of a call of a kernel
constexpr uint32_t kOddWork = 1u << 31;

}  // namespace

DemandFfn::DemandFfn(const FfnContext& context) : c_(context) {
  const uint32_t d_ff = c_.bundles().d_ff;
  for (Work& w : works_) {
    w.active.resize(d_ff);
    w.coefficients.resize(d_ff);
    w.computed.resize(d_ff);
    w.damaged.resize(d_ff);
    w.bundles.resize(d_ff);
    for (auto* indices : {&w.wave.hits, &w.wave.misses, &w.landed}) indices->reserve(d_ff);
    if (c_.map == nullptr) w.pins.resize(std::min(d_ff, c_.cache->n_slots()));
  }
  down_.resize(d_ff);
  down_coefficients_.resize(d_ff);
  if (c_.map != nullptr) return;
  wave_index_.resize(c_.cache->n_slots());
  reads_.reserve(d_ff);
}

size_t DemandFfn::ScratchBytes(uint32_t d_ff, uint32_t n_slots) {
  constexpr size_t kPerNeuron = 2 * (4 * sizeof(uint32_t) + sizeof(float) + 2 + sizeof(void*)) +
                                sizeof(IoRequest) + sizeof(void*) + sizeof(float);
  return size_t{d_ff} * kPerNeuron + 2 * std::min(d_ff, n_slots) * sizeof(Pin) +
         size_t{n_slots} * sizeof(uint32_t);
}

void DemandFfn::Begin(uint32_t layer, uint32_t n_active, IoPriority priority) {
  Work& w = work(layer);
  w.begun = true;
  w.layer = layer;
  w.n_active = n_active;
  w.begin = 0;
  StartWave(w, priority);
  w.is_ahead = priority == IoPriority::kLookAhead;
  if (w.is_ahead) stats_.looked_ahead += w.wave.misses.size();
}

absl::Status DemandFfn::Finish(uint32_t layer, std::span<const float> gate, const VectorView& x,
                               float* y) {
  Work& w = work(layer);
  stats_.active_neurons += w.n_active;
  stats_.neurons += c_.bundles().d_ff;
  absl::Status status;
  while (status.ok() && w.begin < w.n_active) {
    if (w.count == 0) StartWave(w, IoPriority::kDemand);
    if (w.count == 0) {
      status = absl::InternalError("the neuron cache has no slot to take");
      break;
    }
    status = FinishWave(w, gate, x, y);
    if (!status.ok()) break;
    if (c_.map == nullptr) {
      for (uint32_t i = 0; i < w.count; ++i) w.pins[i].Reset();
    }
    w.begin += std::exchange(w.count, 0);
  }
  w.begun = false;
  if (!status.ok()) Cancel();
  return status;
}

void DemandFfn::DropRectified(uint32_t layer, std::span<float> gate) const {
  const Work& w = works_[layer % 2];
  for (uint32_t i = 0; i < w.n_active; ++i) {
    if (w.coefficients[i] == 0.0f) gate[w.active[i]] = 0.0f;
  }
}

absl::Status DemandFfn::RectifyGate(uint32_t layer, std::span<float> gate, const VectorView& x,
                                    std::span<float> scratch) {
  Work& w = work(layer);
  const std::vector<uint32_t> predicted = w.active;  // perhaps a layer ahead
  const DemandStats before = stats_;
  uint32_t n = 0;
  for (uint32_t p = 0; p < gate.size(); ++p) {
    if (gate[p] > 0.0f) w.active[n++] = p;
  }
  Begin(layer, n, IoPriority::kDemand);
  SLUICE_RETURN_IF_ERROR(Finish(layer, gate, x, scratch.data()));
  DropRectified(layer, gate);
  w.active = predicted;
  stats_ = before;
  return absl::OkStatus();
}

void DemandFfn::Cancel() {
  c_.io.Drain();  // the kernel may still write into slots that are let go
  for (Work& w : works_) {
    w.begun = false;
    w.count = 0;
    w.landed.clear();
    for (Pin& pin : w.pins) pin.Reset();
  }
}

void DemandFfn::StartWave(Work& w, IoPriority priority) {
  w.landed.clear();
  if (c_.map != nullptr) {
    StartMappedWave(w);
    return;
  }
  const auto positions = std::span(w.active).subspan(w.begin, w.n_active - w.begin);
  PinWave(*c_.cache, w.layer, positions, c_.io.room(), w.pins, &w.wave);
  w.count = w.wave.count();
  reads_.clear();
  const uint32_t odd = w.layer % 2 == 1 ? kOddWork : 0;
  for (const uint32_t i : w.wave.misses) {
    wave_index_[w.pins[i].slot()] = i | odd;
    reads_.push_back({c_.bundles().BundleOffset(w.layer, positions[i]), c_.bundles().stride,
                      w.pins[i].data(), w.pins[i].slot()});
  }
  for (uint32_t i = 0; i < w.count; ++i) {
    w.bundles[w.begin + i] = w.pins[i].data();
    w.computed[w.begin + i] = false;
  }
  c_.cache->CountUses(w.layer, w.wave.hits.size(), w.wave.misses.size());
  c_.io.SubmitSlots(reads_, priority);
}

void DemandFfn::StartMappedWave(Work& w) {
  w.wave.hits.clear();
  w.wave.misses.clear();
  w.count = w.n_active - w.begin;
  for (uint32_t i = 0; i < w.count; ++i) {
    w.bundles[w.begin + i] = c_.map + c_.bundles().BundleOffset(w.layer, w.active[w.begin + i]);
    w.computed[w.begin + i] = false;
    w.wave.hits.push_back(i);
  }
}

void DemandFfn::SortLanded() {
  for (const uint32_t slot : c_.io.landed()) {
    const uint32_t index = wave_index_[slot];
    works_[(index & kOddWork) != 0].landed.push_back(index & ~kOddWork);
  }
  c_.io.ClearLanded();
}

absl::Status DemandFfn::FinishWave(Work& w, std::span<const float> gate, const VectorView& x,
                                   float* y) {
  auto missing = static_cast<uint32_t>(w.wave.misses.size());
  SLUICE_RETURN_IF_ERROR(c_.io.Pump());
  SortLanded();
  if (std::exchange(w.is_ahead, false)) stats_.in_time += w.landed.size();
  SLUICE_RETURN_IF_ERROR(Compute(w, w.wave.hits, gate, x, /*just_read=*/false));
  uint32_t cursor = AdvanceDown(w, 0, missing == 0 ? 1 : kDownBatch, y);
  while (missing > 0) {
    SLUICE_RETURN_IF_ERROR(c_.io.Pump());
    SortLanded();
    while (w.landed.empty()) {
      SLUICE_RETURN_IF_ERROR(c_.io.WaitAndPump());
      SortLanded();
    }
    missing -= static_cast<uint32_t>(w.landed.size());
    SLUICE_RETURN_IF_ERROR(Compute(w, w.landed, gate, x, /*just_read=*/true));
    w.landed.clear();
    cursor = AdvanceDown(w, cursor, missing == 0 ? 1 : kDownBatch, y);
  }
  return absl::OkStatus();
}

void DemandFfn::ComputeBatch(Work& w, std::span<const uint32_t> ready, std::span<const float> gate,
                             const VectorView& x) const {
  const size_t d = c_.bundles().d_model;
  const std::byte* rows[kBatch];
  float dots[kBatch];
  RowSet set;
  set.pointers = rows;
  const auto dot = [&](size_t offset, std::span<const uint32_t> indices) {
    set.n_rows = indices.size();
    for (size_t r = 0; r < indices.size(); ++r) rows[r] = w.bundles[indices[r]] + offset;
    c_.kernels.dot[c_.type()](set, d, &x, 1, dots, kBatch);
  };
  // By index in active; the neurons that fire.
  uint32_t firing[kBatch];
  size_t n = 0;
  for (const uint32_t i : ready) firing[n++] = w.begin + i;
  if (gate.empty()) {
    dot(0, std::span(firing).first(n));
    const auto bias = c_.file.up_bias(w.layer);
    size_t kept = 0;
    for (size_t r = 0; r < n; ++r) {
      if (!bias.empty()) dots[r] += bias[c_.file.NeuronAt(w.layer, w.active[firing[r]])];
      const float a = c_.Act(dots[r]);
      w.coefficients[firing[r]] = a;
      if (a != 0.0f) firing[kept++] = firing[r];
    }
    n = kept;
  } else {
    for (size_t r = 0; r < n; ++r) w.coefficients[firing[r]] = c_.Act(gate[w.active[firing[r]]]);
  }
  if (!c_.bundles().has_up) return;
  dot(c_.bundles().up_offset(), std::span(firing).first(n));
  for (size_t r = 0; r < n; ++r) {
    float& c = w.coefficients[firing[r]];
    c = c_.Coefficient(c, dots[r]);
  }
}

absl::Status DemandFfn::Compute(Work& w, std::span<const uint32_t> ready,
                                std::span<const float> gate, const VectorView& x, bool just_read) {
  const size_t grain = WorthwhileGrain(c_.bundles().row_bytes(), kRowUnit);
  c_.pool.Run(ready.size(), grain, [&](size_t first, size_t last, int) {
    for (size_t b = first; b < last; b += kBatch) {
      const auto batch = ready.subspan(b, std::min(kBatch, last - b));
      for (const uint32_t i : batch) {
        const uint32_t position = w.active[w.begin + i];
        const bool check = just_read || c_.MustCheckMapped(w.layer, position);
        w.damaged[i] =
            check && !c_.file.BundleIsIntact(w.layer, position, c_.payload(w.bundles[w.begin + i]));
      }
      ComputeBatch(w, batch, gate, x);
    }
  });
  for (const uint32_t i : ready) {
    const uint32_t position = w.active[w.begin + i];
    if (c_.map != nullptr) {
      if (w.damaged[i]) return c_.Damaged(w.layer, position);
      c_.map_checked[c_.MapKey(w.layer, position)] = true;
    } else if (just_read) {
      if (w.damaged[i]) {
        SLUICE_RETURN_IF_ERROR(c_.Repair(w.layer, position, w.pins[i].data()));
        ComputeBatch(w, {&i, 1}, gate, x);
      }
      c_.cache->MarkLoaded(w.pins[i].slot());
    }
    w.computed[w.begin + i] = true;
  }
  return absl::OkStatus();
}

uint32_t DemandFfn::AdvanceDown(Work& w, uint32_t cursor, uint32_t least, float* y) {
  uint32_t end = cursor;
  while (end < w.count && w.computed[w.begin + end]) ++end;
  if (end - cursor < least) return cursor;
  size_t n = 0;
  for (uint32_t i = w.begin + cursor; i < w.begin + end; ++i) {
    if (w.coefficients[i] == 0.0f) continue;
    down_[n] = w.bundles[i] + c_.bundles().down_offset();
    down_coefficients_[n++] = w.coefficients[i];
  }
  stats_.firing_neurons += n;
  c_.AddDown(std::span(down_).first(n), down_coefficients_.data(), y);
  return end;
}

}  // namespace sluice
