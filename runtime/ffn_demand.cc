#include "runtime/ffn_demand.h"

#include <algorithm>
#include <utility>

#include "io/status.h"

namespace sluice {
namespace {

// Down columns that are worth a fork-join while misses are still on their way.
constexpr uint32_t kDownBatch = 64;
constexpr size_t kRowUnit = 8;  // rows that kernels like to take together

}  // namespace

DemandFfn::DemandFfn(const FfnContext& context, const NeuronSelector& selector)
    : c_(context), selector_(selector) {
  const uint32_t d_ff = c_.bundles().d_ff;
  active_.resize(d_ff);
  coefficients_.resize(d_ff);
  computed_.resize(d_ff);
  damaged_.resize(d_ff);
  bundles_.resize(d_ff);
  down_.resize(d_ff);
  for (auto* indices : {&wave_.hits, &wave_.misses, &landed_}) indices->reserve(d_ff);
  if (c_.map == nullptr) {
    pins_.resize(std::min(d_ff, c_.cache->n_slots()));
    wave_index_.resize(c_.cache->n_slots());
    reads_.reserve(d_ff);
  }
}

size_t DemandFfn::ScratchBytes(uint32_t d_ff, uint32_t n_slots) {
  constexpr size_t kPerNeuron =
      4 * sizeof(uint32_t) + sizeof(float) + 2 + 2 * sizeof(void*) + sizeof(IoRequest);
  return size_t{d_ff} * kPerNeuron + std::min(d_ff, n_slots) * sizeof(Pin) +
         size_t{n_slots} * sizeof(uint32_t);
}

absl::Status DemandFfn::Run(uint32_t layer, std::span<const float> gate, const VectorView& x,
                            float* y) {
  const uint32_t n = selector_.Select({layer, gate}, active_);
  n_last_ = n;
  n_active_ += n;
  n_neurons_ += gate.size();
  for (uint32_t begin = 0; begin < n;) {
    const uint32_t count =
        c_.map != nullptr ? StartMappedWave(layer, begin, n) : StartWave(layer, begin, n);
    if (count == 0) return absl::InternalError("the neuron cache has no slot to take");
    const absl::Status status = FinishWave(layer, gate, x, begin, count, y);
    if (!status.ok()) c_.io.Drain();  // the kernel may still write into slots that are let go
    if (c_.map == nullptr) {
      for (uint32_t i = 0; i < count; ++i) pins_[i].Reset();
    }
    SLUICE_RETURN_IF_ERROR(status);
    begin += count;
  }
  return absl::OkStatus();
}

uint32_t DemandFfn::StartWave(uint32_t layer, uint32_t begin, uint32_t end) {
  const auto positions = std::span(active_).subspan(begin, end - begin);
  PinWave(*c_.cache, layer, positions, c_.io.room(), pins_, &wave_);
  reads_.clear();
  for (const uint32_t w : wave_.misses) {
    wave_index_[pins_[w].slot()] = w;
    reads_.push_back({c_.bundles().BundleOffset(layer, positions[w]), c_.bundles().stride,
                      pins_[w].data(), pins_[w].slot()});
  }
  for (uint32_t w = 0; w < wave_.count(); ++w) SetBundle(begin + w, pins_[w].data());
  c_.cache->CountUses(layer, wave_.hits.size(), wave_.misses.size());
  c_.io.SubmitSlots(reads_);
  return wave_.count();
}

uint32_t DemandFfn::StartMappedWave(uint32_t layer, uint32_t begin, uint32_t end) {
  wave_.hits.clear();
  for (uint32_t i = begin; i < end; ++i) {
    SetBundle(i, c_.map + c_.bundles().BundleOffset(layer, active_[i]));
    wave_.hits.push_back(i - begin);
  }
  return end - begin;
}

void DemandFfn::SetBundle(uint32_t i, const std::byte* bundle) {
  computed_[i] = false;
  bundles_[i] = bundle;
  down_[i] = bundle + c_.bundles().down_offset();
}

absl::Status DemandFfn::FinishWave(uint32_t layer, std::span<const float> gate, const VectorView& x,
                                   uint32_t begin, uint32_t count, float* y) {
  uint32_t missing = count - static_cast<uint32_t>(wave_.hits.size());
  SLUICE_RETURN_IF_ERROR(Compute(wave_.hits, layer, gate, x, begin, /*just_read=*/false));
  uint32_t cursor = AdvanceDown(begin, 0, count, missing == 0 ? 1 : kDownBatch, y);
  while (missing > 0) {
    SLUICE_RETURN_IF_ERROR(c_.io.Pump());
    if (c_.io.landed().empty()) SLUICE_RETURN_IF_ERROR(c_.io.WaitAndPump());
    landed_.clear();
    for (const uint32_t slot : c_.io.landed()) landed_.push_back(wave_index_[slot]);
    c_.io.ClearLanded();
    missing -= static_cast<uint32_t>(landed_.size());
    SLUICE_RETURN_IF_ERROR(Compute(landed_, layer, gate, x, begin, /*just_read=*/true));
    cursor = AdvanceDown(begin, cursor, count, missing == 0 ? 1 : kDownBatch, y);
  }
  return absl::OkStatus();
}

absl::Status DemandFfn::Compute(std::span<const uint32_t> ready, uint32_t layer,
                                std::span<const float> gate, const VectorView& x, uint32_t begin,
                                bool just_read) {
  const size_t grain = WorthwhileGrain(c_.bundles().row_bytes(), kRowUnit);
  c_.pool.Run(ready.size(), grain, [&](size_t first, size_t last, int) {
    constexpr size_t kBatch = 64;
    const std::byte* rows[kBatch];
    float up[kBatch];
    for (size_t b = first; b < last; b += kBatch) {
      RowSet set;
      set.pointers = rows;
      set.n_rows = std::min(kBatch, last - b);
      for (size_t r = 0; r < set.n_rows; ++r) {
        const uint32_t w = ready[b + r], i = begin + w;
        rows[r] = bundles_[i];
        const bool check = just_read || c_.MustCheckMapped(layer, active_[i]);
        damaged_[w] = check && !c_.file.BundleIsIntact(layer, active_[i], c_.payload(bundles_[i]));
      }
      c_.kernels.dot[c_.type()](set, c_.bundles().d_model, &x, 1, up, kBatch);
      for (size_t r = 0; r < set.n_rows; ++r) {
        const uint32_t i = begin + ready[b + r];
        coefficients_[i] = c_.Act(gate[active_[i]]) * up[r];
      }
    }
  });
  for (const uint32_t w : ready) {
    const uint32_t i = begin + w, position = active_[i];
    if (c_.map != nullptr) {
      if (damaged_[w]) return c_.Damaged(layer, position);
      c_.map_checked[c_.MapKey(layer, position)] = true;
    } else if (just_read) {
      if (damaged_[w]) {
        SLUICE_RETURN_IF_ERROR(c_.Repair(layer, position, pins_[w].data()));
        RowSet set;
        set.pointers = &bundles_[i];
        set.n_rows = 1;
        float up;
        c_.kernels.dot[c_.type()](set, c_.bundles().d_model, &x, 1, &up, 1);
        coefficients_[i] = c_.Act(gate[position]) * up;
      }
      c_.cache->MarkLoaded(pins_[w].slot());
    }
    computed_[i] = true;
  }
  return absl::OkStatus();
}

uint32_t DemandFfn::AdvanceDown(uint32_t begin, uint32_t cursor, uint32_t count, uint32_t least,
                                float* y) {
  uint32_t end = cursor;
  while (end < count && computed_[begin + end]) ++end;
  if (end - cursor < least) return cursor;
  c_.AddDown(std::span(down_).subspan(begin + cursor, end - cursor), &coefficients_[begin + cursor],
             y);
  return end;
}

}  // namespace sluice
