#include "runtime/ffn_demand.h"

#include <algorithm>
#include <utility>

#include "io/status.h"

namespace sluice {
namespace {

constexpr uint32_t kDownBatch = 8;  // down columns that an AXPY likes to take together
constexpr size_t kBatch = 64;       // rows of a call of a kernel
constexpr uint32_t kNotOfWave = 0xffffffff;

}  // namespace

DemandFfn::DemandFfn(const FfnContext& context, LookAhead* look_ahead, bool cached_first)
    : c_(context), look_ahead_(look_ahead), cached_first_(cached_first) {
  const uint32_t d_ff = c_.bundles().d_ff;
  active_.resize(d_ff);
  coefficients_.resize(d_ff);
  computed_.resize(d_ff);
  damaged_.resize(d_ff);
  bundles_.resize(d_ff);
  for (auto* indices : {&wave_.hits, &wave_.misses, &ready_, &landed_}) indices->reserve(d_ff);
  down_.resize(d_ff);
  down_coefficients_.resize(d_ff);
  sections_.resize(c_.sums.sections().count());
  parts_.reserve(sections_.size());
  if (c_.map != nullptr) return;
  pins_.resize(std::min(d_ff, c_.cache->n_slots()));
  wave_index_.resize(c_.cache->n_slots(), kNotOfWave);
  reads_.reserve(d_ff);
}

size_t DemandFfn::ScratchBytes(uint32_t d_ff, uint32_t n_slots) {
  constexpr size_t kPerNeuron =
      5 * sizeof(uint32_t) + 2 * sizeof(float) + 2 + 2 * sizeof(std::byte*) + sizeof(IoRequest);
  return size_t{d_ff} * kPerNeuron + std::min(d_ff, n_slots) * sizeof(Pin) +
         size_t{n_slots} * sizeof(uint32_t) +
         DownSections(d_ff).count() * (sizeof(SectionState) + sizeof(Part));
}

absl::Status DemandFfn::Begin(uint32_t layer, uint32_t n_active) {
  layer_ = layer;
  n_active_ = n_active;
  begin_ = 0;
  c_.sums.Begin();
  const absl::Status status = StartWave();
  if (!status.ok()) Cancel();
  return status;
}

absl::Status DemandFfn::Finish(std::span<const float> gate, const VectorView& x, float* y) {
  stats_.active_neurons += n_active_;
  stats_.neurons += c_.bundles().d_ff;
  absl::Status status;
  while (begin_ < n_active_) {
    if (count_ == 0) status = StartWave();
    if (status.ok()) status = FinishWave(gate, x);
    if (!status.ok()) {
      Cancel();
      return status;
    }
    for (Pin& pin : pins_) {
      if (!pin) break;
      pin.Reset();
    }
    begin_ += std::exchange(count_, 0);
  }
  c_.sums.AddTo(c_.pool, y);
  return absl::OkStatus();
}

void DemandFfn::DropRectified(std::span<float> gate) const {
  for (uint32_t i = 0; i < n_active_; ++i) {
    if (coefficients_[i] == 0.0f) gate[active_[i]] = 0.0f;
  }
}

absl::Status DemandFfn::RectifyGate(uint32_t layer, std::span<float> gate, const VectorView& x,
                                    std::span<float> scratch) {
  const DemandStats before = stats_;
  uint32_t n = 0;
  for (uint32_t p = 0; p < gate.size(); ++p) {
    if (gate[p] > 0.0f) active_[n++] = p;
  }
  SLUICE_RETURN_IF_ERROR(Begin(layer, n));
  SLUICE_RETURN_IF_ERROR(Finish(gate, x, scratch.data()));
  DropRectified(gate);
  stats_ = before;
  return absl::OkStatus();
}

void DemandFfn::Cancel() {
  c_.io.Drain();  // the kernel may still write into slots that are let go
  n_active_ = begin_ = count_ = 0;
  landed_.clear();
  std::fill(wave_index_.begin(), wave_index_.end(), kNotOfWave);
  for (Pin& pin : pins_) pin.Reset();
  if (look_ahead_ != nullptr) look_ahead_->Forget();
}

absl::Status DemandFfn::StartWave() {
  landed_.clear();
  if (c_.map != nullptr) {
    StartMappedWave();
    DivideWave();
    return absl::OkStatus();
  }
  SLUICE_RETURN_IF_ERROR(c_.io.Pump());
  SortLanded();
  const auto positions = active().subspan(begin_);
  PinWave(*c_.cache, layer_, positions, c_.io.room(), pins_, &wave_);
  // All slots may be with bundles that were read ahead for nothing.
  while (wave_.count() == 0 && look_ahead_ != nullptr && look_ahead_->holds_any()) {
    if (!look_ahead_->DropLanded()) SLUICE_RETURN_IF_ERROR(c_.io.WaitAndPump());
    SortLanded();
    PinWave(*c_.cache, layer_, positions, c_.io.room(), pins_, &wave_);
  }
  count_ = wave_.count();
  if (count_ == 0 && !positions.empty()) {
    return absl::InternalError("the neuron cache has no slot to take");
  }
  RequestMissing(positions);
  DivideWave();
  return absl::OkStatus();
}

void DemandFfn::DivideWave() {
  const DownSections& s = c_.sums.sections();
  for (uint32_t i = begin_; i < begin_ + count_;) {
    const uint32_t section = s.Of(active_[i]);
    const uint32_t first = i;
    while (i < begin_ + count_ && active_[i] < s.End(section)) ++i;
    sections_[section] = {.end = i, .cursor = first};
  }
}

void DemandFfn::DivideInParts(std::span<const uint32_t> indices) {
  const DownSections& s = c_.sums.sections();
  parts_.clear();
  for (uint32_t i = 0; i < indices.size();) {
    const uint32_t section = s.Of(active_[begin_ + indices[i]]);
    const uint32_t first = i;
    while (i < indices.size() && active_[begin_ + indices[i]] < s.End(section)) ++i;
    parts_.push_back({section, first, i});
  }
}

void DemandFfn::RequestMissing(std::span<const uint32_t> positions) {
  ready_.clear();
  for (const uint32_t i : wave_.hits) {
    const uint32_t slot = pins_[i].slot();
    if (pins_[i].loaded()) {
      ready_.push_back(i);
    } else if (look_ahead_->Take(slot)) {
      landed_.push_back(i);
    } else {
      wave_index_[slot] = i;
    }
  }
  reads_.clear();
  for (const uint32_t i : wave_.misses) {
    wave_index_[pins_[i].slot()] = i;
    reads_.push_back({c_.bundles().BundleOffset(layer_, positions[i]), c_.bundles().stride,
                      pins_[i].data(), pins_[i].slot()});
  }
  for (uint32_t i = 0; i < count_; ++i) {
    bundles_[begin_ + i] = pins_[i].data();
    computed_[begin_ + i] = false;
  }
  c_.cache->CountUses(layer_, ready_.size(), count_ - ready_.size());
  c_.io.SubmitSlots(reads_);
}

void DemandFfn::StartMappedWave() {
  ready_.clear();
  count_ = n_active_ - begin_;
  for (uint32_t i = 0; i < count_; ++i) {
    bundles_[begin_ + i] = c_.map + c_.bundles().BundleOffset(layer_, active_[begin_ + i]);
    computed_[begin_ + i] = false;
    ready_.push_back(i);
  }
}

void DemandFfn::SortLanded() {
  for (const uint32_t slot : c_.io.landed()) {
    const uint32_t index = std::exchange(wave_index_[slot], kNotOfWave);
    if (index != kNotOfWave) {
      landed_.push_back(index);
    } else {
      look_ahead_->Landed(slot);
    }
  }
  c_.io.ClearLanded();
}

absl::Status DemandFfn::AwaitLanded(size_t least) {
  SLUICE_RETURN_IF_ERROR(c_.io.Pump());
  SortLanded();
  while (landed_.size() < least) {
    SLUICE_RETURN_IF_ERROR(c_.io.WaitAndPump());
    SortLanded();
  }
  return absl::OkStatus();
}

absl::Status DemandFfn::FinishWave(std::span<const float> gate, const VectorView& x) {
  auto missing = count_ - static_cast<uint32_t>(ready_.size());
  if (!cached_first_) SLUICE_RETURN_IF_ERROR(AwaitLanded(missing));
  SLUICE_RETURN_IF_ERROR(Compute(ready_, gate, x, /*just_read=*/false));
  while (missing > 0) {
    SLUICE_RETURN_IF_ERROR(AwaitLanded(1));
    missing -= static_cast<uint32_t>(landed_.size());
    std::sort(landed_.begin(), landed_.end());
    SLUICE_RETURN_IF_ERROR(Compute(landed_, gate, x, /*just_read=*/true));
    landed_.clear();
  }
  return absl::OkStatus();
}

void DemandFfn::ComputeBatch(std::span<const uint32_t> ready, std::span<const float> gate,
                             const VectorView& x) {
  const size_t d = c_.bundles().d_model;
  const std::byte* rows[kBatch];
  float dots[kBatch];
  RowSet set;
  set.pointers = rows;
  const auto dot = [&](size_t offset, std::span<const uint32_t> indices) {
    set.n_rows = indices.size();
    for (size_t r = 0; r < indices.size(); ++r) rows[r] = bundles_[indices[r]] + offset;
    dot_rows_.fetch_add(indices.size(), std::memory_order_relaxed);
    c_.kernels.dot[c_.type()](set, d, &x, 1, dots, kBatch);
  };
  // By index in active; the neurons that fire.
  uint32_t firing[kBatch];
  size_t n = 0;
  for (const uint32_t i : ready) firing[n++] = begin_ + i;
  if (gate.empty()) {
    dot(0, std::span(firing).first(n));
    const auto bias = c_.file.up_bias(layer_);
    size_t kept = 0;
    for (size_t r = 0; r < n; ++r) {
      if (!bias.empty()) dots[r] += bias[c_.file.NeuronAt(layer_, active_[firing[r]])];
      const float a = c_.Act(dots[r]);
      coefficients_[firing[r]] = a;
      if (a != 0.0f) firing[kept++] = firing[r];
    }
    n = kept;
  } else {
    for (size_t r = 0; r < n; ++r) coefficients_[firing[r]] = c_.Act(gate[active_[firing[r]]]);
  }
  if (!c_.bundles().has_up) return;
  dot(c_.bundles().up_offset(), std::span(firing).first(n));
  for (size_t r = 0; r < n; ++r) {
    float& c = coefficients_[firing[r]];
    c = c_.Coefficient(c, dots[r]);
  }
}

bool DemandFfn::ComputePart(std::span<const uint32_t> ready, std::span<const float> gate,
                            const VectorView& x, bool just_read) {
  bool intact = true;
  for (size_t b = 0; b < ready.size(); b += kBatch) {
    const auto batch = ready.subspan(b, std::min(kBatch, ready.size() - b));
    for (const uint32_t i : batch) {
      const uint32_t position = active_[begin_ + i];
      const bool check = just_read || c_.MustCheckMapped(layer_, position);
      damaged_[i] =
          check && !c_.file.BundleIsIntact(layer_, position, c_.payload(bundles_[begin_ + i]));
      intact &= !damaged_[i];
      computed_[begin_ + i] = !damaged_[i];
    }
    ComputeBatch(batch, gate, x);
  }
  return intact;
}

absl::Status DemandFfn::Compute(std::span<const uint32_t> ready, std::span<const float> gate,
                                const VectorView& x, bool just_read) {
  DivideInParts(ready);
  // The gate, up and down rows of a neuron, and what a share of the neurons has of them.
  const size_t bytes = 3 * c_.bundles().row_bytes() * ready.size() / (parts_.size() + 1) + 1;
  c_.pool.Run(parts_.size(), WorthwhileGrain(bytes, 1), [&](size_t first, size_t last, int) {
    for (size_t p = first; p < last; ++p) {
      const Part& part = parts_[p];
      const auto indices = ready.subspan(part.begin, part.end - part.begin);
      if (!ComputePart(indices, gate, x, just_read)) any_damaged_.store(true);
      AdvanceDown(part.section);
    }
  });
  if (any_damaged_.exchange(false)) SLUICE_RETURN_IF_ERROR(RepairDamaged(ready, gate, x));
  for (const uint32_t i : ready) {
    if (c_.map != nullptr) {
      c_.map_checked[c_.MapKey(layer_, active_[begin_ + i])] = true;
    } else if (just_read) {
      c_.cache->MarkLoaded(pins_[i].slot());
    }
  }
  stats_.firing_neurons += firing_.load(std::memory_order_relaxed);
  stats_.touched_rows += dot_rows_.exchange(0, std::memory_order_relaxed) +
                         firing_.exchange(0, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status DemandFfn::RepairDamaged(std::span<const uint32_t> ready, std::span<const float> gate,
                                      const VectorView& x) {
  for (const uint32_t i : ready) {
    if (!damaged_[i]) continue;
    const uint32_t position = active_[begin_ + i];
    if (c_.map != nullptr) return c_.Damaged(layer_, position);
    SLUICE_RETURN_IF_ERROR(c_.Repair(layer_, position, pins_[i].data()));
    ComputeBatch({&i, 1}, gate, x);
    computed_[begin_ + i] = true;
    AdvanceDown(c_.sums.sections().Of(position));
  }
  return absl::OkStatus();
}

void DemandFfn::AdvanceDown(uint32_t section) {
  SectionState& s = sections_[section];
  uint32_t end = s.cursor;
  while (end < s.end && computed_[end]) ++end;
  if (end < s.end && end - s.cursor < kDownBatch) return;
  const uint32_t first = s.cursor;
  uint32_t n = 0;
  for (uint32_t i = first; i < end; ++i) {
    if (coefficients_[i] == 0.0f) continue;
    down_[first + n] = bundles_[i] + c_.bundles().down_offset();
    down_coefficients_[first + n++] = coefficients_[i];
  }
  s.cursor = end;
  if (n == 0) return;
  firing_.fetch_add(n, std::memory_order_relaxed);
  c_.AddDown(std::span(down_).subspan(first, n), &down_coefficients_[first],
             c_.sums.Section(section));
}

}  // namespace sluice
