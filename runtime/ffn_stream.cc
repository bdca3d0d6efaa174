#include "runtime/ffn_stream.h"

#include <algorithm>
#include <cstring>

#include "io/status.h"

namespace sluice {
namespace {

uint32_t BundlesPerPiece(const BundleLayout& bundles, uint32_t piece_bytes) {
  return std::clamp<uint32_t>(piece_bytes / bundles.stride, 1, bundles.bundles_per_blob);
}

// See FfnObservation::gate.
void DropRectified(std::span<const float> coefficients, std::span<float> gate) {
  for (size_t i = 0; i < gate.size(); ++i) {
    if (gate[i] > 0.0f && coefficients[i] == 0.0f) gate[i] = 0.0f;
  }
}

}  // namespace

StreamFfn::StreamFfn(const FfnContext& context, const Options& options)
    : c_(context), options_(options) {
  const size_t threads = static_cast<size_t>(c_.pool.n_threads());
  bundles_.resize(kWindow);
  down_.resize(kWindow);
  used_.resize(kWindow);
  damaged_.resize(kWindow);
  coefficients_.resize(size_t{options.max_tokens} * kWindow);
  thread_views_.resize(threads * options.max_tokens);
  thread_tokens_.resize(threads * options.max_tokens);
  up_.resize(coefficients_.size());
  section_sums_.resize(size_t{options.max_tokens} * c_.bundles().d_model);
  pins_.resize(kWindow);
  kept_rows_.reserve(kWindow);
  kept_.resize(c_.file.config().n_layers);
}

size_t StreamFfn::ScratchBytes(const Options& options, uint32_t d_model, int n_threads) {
  constexpr size_t kPerToken = sizeof(VectorView) + sizeof(uint32_t);
  return options.max_tokens *
         ((2 * kWindow + d_model) * sizeof(float) + static_cast<size_t>(n_threads) * kPerToken);
}

size_t StreamFfn::MaxPieces(const BundleLayout& bundles, uint32_t piece_bytes) {
  const uint32_t per_piece = BundlesPerPiece(bundles, piece_bytes);
  const uint32_t per_blob = (bundles.bundles_per_blob + per_piece - 1) / per_piece;
  return size_t{bundles.blobs_per_layer()} * per_blob;
}

void StreamFfn::AppendPieces(uint32_t layer, std::vector<StreamPiece>& pieces) const {
  if (c_.map != nullptr) return;
  const BundleLayout& b = c_.bundles();
  const uint32_t per_piece = BundlesPerPiece(b, c_.ring.piece_bytes());
  for (uint32_t first = 0; first < b.d_ff;) {
    const uint32_t blob_end = (first / b.bundles_per_blob + 1) * b.bundles_per_blob;
    const uint32_t count = std::min({per_piece, blob_end - first, b.d_ff - first});
    // From the first to the last that is not cached.
    uint32_t begin = first, end = first + count;
    while (begin < end && c_.cache->Contains(layer, begin)) ++begin;
    while (end > begin && c_.cache->Contains(layer, end - 1)) --end;
    if (begin < end) {
      StreamPiece piece;
      piece.layer = layer;
      piece.first = begin;
      piece.count = end - begin;
      piece.offset = b.BundleOffset(layer, begin);
      piece.length = piece.count * b.stride;
      pieces.push_back(piece);
    }
    first += count;
  }
}

absl::Status StreamFfn::Run(uint32_t layer, float* gate, std::span<const VectorView> x, float* y) {
  const uint32_t d_ff = c_.bundles().d_ff;
  std::fill_n(section_sums_.begin(), x.size() * c_.bundles().d_model, 0.0f);
  for (uint32_t p = 0; p < d_ff;) {
    uint32_t cached_end = d_ff;
    const StreamPiece* next = c_.map == nullptr ? c_.ring.peek() : nullptr;
    const bool is_of_layer =
        next != nullptr && next->matrix == StreamPiece::kBundles && next->layer == layer;
    if (is_of_layer) cached_end = next->first;
    if (p == 0 && cached_end == d_ff && x.size() == 1) return RunSections(layer, gate, x[0], y);
    if (p < cached_end) {
      SLUICE_RETURN_IF_ERROR(RunCached(layer, p, cached_end, gate, x, y));
      p = cached_end;
    } else {
      p += next->count;
      SLUICE_RETURN_IF_ERROR(RunPiece(layer, *next, gate, x, y));
    }
  }
  return absl::OkStatus();
}

absl::Status StreamFfn::RunSections(uint32_t layer, float* gate, const VectorView& x, float* y) {
  c_.sums.Begin();
  const DownSections& sections = c_.sums.sections();
  c_.pool.Run(sections.count(), 1, [&](size_t begin, size_t end, int) {
    for (size_t s = begin; s < end; ++s) RunSection(layer, static_cast<uint32_t>(s), gate, x);
  });
  const uint32_t bad = bad_.exchange(kNoPosition);
  if (bad != kNoPosition) {
    if (InMemory(layer, bad) != nullptr) return c_.Damaged(layer, bad);
    return absl::InternalError("a bundle is neither cached nor streamed");
  }
  c_.sums.AddTo(c_.pool, y);
  touched_rows_ += section_rows_.exchange(0);
  const uint64_t used = section_used_.exchange(0);
  if (c_.map == nullptr) {
    c_.cache->CountUses(layer, used, 0);
  } else if (any_checked_.exchange(false)) {
    for (uint32_t p = 0; p < c_.bundles().d_ff; ++p) {
      const bool is_used =
          options_.selector == nullptr || options_.selector->IsActive(layer, c_.Act(gate[p]));
      if (is_used) c_.map_checked[c_.MapKey(layer, p)] = true;
    }
  }
  return absl::OkStatus();
}

void StreamFfn::RunSection(uint32_t layer, uint32_t section, float* gate, const VectorView& x) {
  const DownSections& sections = c_.sums.sections();
  const BundleLayout& b = c_.bundles();
  const uint32_t end = sections.End(section);
  const std::byte *up[kWindow], *down[kWindow];
  float coefficients[kWindow], dots[kWindow];
  uint64_t n_used = 0, n_firing = 0;
  for (uint32_t first = sections.Begin(section); first < end; first += kWindow) {
    uint32_t n = 0;
    uint32_t positions[kWindow];
    for (uint32_t p = first; p < std::min(first + kWindow, end); ++p) {
      const float a = c_.Act(gate[p]);
      if (options_.selector != nullptr && !options_.selector->IsActive(layer, a)) continue;
      const std::byte* bundle = InMemory(layer, p);
      const bool check = c_.MustCheckMapped(layer, p);
      if (check) any_checked_.store(true, std::memory_order_relaxed);
      if (bundle == nullptr || (check && !c_.file.BundleIsIntact(layer, p, c_.payload(bundle)))) {
        bad_.store(p);
        return;
      }
      up[n] = bundle + b.up_offset();
      down[n] = bundle + b.down_offset();
      positions[n] = p;
      coefficients[n++] = a;
    }
    if (b.has_up) {
      c_.kernels.dot[c_.type()]({.pointers = up, .n_rows = n}, b.d_model, &x, 1, dots, kWindow);
      for (uint32_t i = 0; i < n; ++i) coefficients[i] = c_.Coefficient(coefficients[i], dots[i]);
    }
    for (uint32_t i = 0; options_.rectify_gate && i < n; ++i) {
      DropRectified({&coefficients[i], 1}, {&gate[positions[i]], 1});
    }
    n_used += n;
    const auto firing = n - static_cast<uint32_t>(std::count(coefficients, coefficients + n, 0.0f));
    if (firing == 0) continue;
    n_firing += firing;
    c_.AddDown(std::span<const std::byte* const>(down, n), coefficients, c_.sums.Section(section));
  }
  section_used_.fetch_add(n_used, std::memory_order_relaxed);
  section_rows_.fetch_add(n_firing + (b.has_up ? n_used : 0), std::memory_order_relaxed);
}

uint32_t StreamFfn::WindowSize(uint32_t first, uint32_t count) const {
  const DownSections& sections = c_.sums.sections();
  return std::min({kWindow, count, sections.End(sections.Of(first)) - first});
}

absl::Status StreamFfn::RunPiece(uint32_t layer, const StreamPiece& piece, float* gate,
                                 std::span<const VectorView> x, float* y) {
  SLUICE_ASSIGN_OR_RETURN(const auto bytes, c_.ring.Next());
  for (uint32_t at = 0, count = 0; at < piece.count; at += count) {
    count = WindowSize(piece.first + at, piece.count - at);
    std::byte* const window = bytes.data() + size_t{at} * c_.bundles().stride;
    for (uint32_t r = 0; r < count; ++r) bundles_[r] = window + size_t{r} * c_.bundles().stride;
    SLUICE_RETURN_IF_ERROR(RunWindow(layer, piece.first + at, count, window, gate, x, y));
    c_.cache->CountUses(layer, 0, n_used(count));
    Keep(layer, piece.first + at, count);
  }
  c_.ring.Release();
  return absl::OkStatus();
}

absl::Status StreamFfn::RunCached(uint32_t layer, uint32_t first, uint32_t end, float* gate,
                                  std::span<const VectorView> x, float* y) {
  for (uint32_t at = first, count = 0; at < end; at += count) {
    count = WindowSize(at, end - at);
    for (uint32_t r = 0; r < count; ++r) {
      if (c_.map != nullptr) {
        bundles_[r] = c_.map + c_.bundles().BundleOffset(layer, at + r);
      } else {
        pins_[r] = c_.cache->Find(layer, at + r);
        if (!pins_[r]) return absl::InternalError("a bundle is neither cached nor streamed");
        bundles_[r] = pins_[r].data();
      }
    }
    const absl::Status status = RunWindow(layer, at, count, /*fresh=*/nullptr, gate, x, y);
    for (uint32_t r = 0; r < count; ++r) pins_[r].Reset();
    SLUICE_RETURN_IF_ERROR(status);
    if (c_.map == nullptr) c_.cache->CountUses(layer, n_used(count), 0);
  }
  return absl::OkStatus();
}

absl::Status StreamFfn::RunWindow(uint32_t layer, uint32_t first, uint32_t count, std::byte* fresh,
                                  float* gate, std::span<const VectorView> x, float* y) {
  const size_t grain = WorthwhileGrain(c_.bundles().row_bytes() * x.size(), 1);
  const bool is_fresh = fresh != nullptr;
  c_.pool.Run(count, grain, [&](size_t begin, size_t end, int thread) {
    ComputeRows(layer, first, static_cast<uint32_t>(begin), static_cast<uint32_t>(end), is_fresh,
                gate, x, thread);
  });
  for (uint32_t r = 0; r < count; ++r) {
    if (damaged_[r]) {
      if (!is_fresh) return c_.Damaged(layer, first + r);
      SLUICE_RETURN_IF_ERROR(c_.Repair(layer, first + r, fresh + size_t{r} * c_.bundles().stride));
      ComputeRows(layer, first, r, r + 1, is_fresh, gate, x, 0);
    } else if (c_.map != nullptr && is_wanted(r)) {
      c_.map_checked[c_.MapKey(layer, first + r)] = true;
    }
  }
  if (options_.rectify_gate) {
    for (size_t t = 0; t < x.size(); ++t) {
      DropRectified({&coefficients_[t * kWindow], count},
                    {gate + t * c_.bundles().d_ff + first, count});
    }
  }
  AddDownOfTokens(count, x.size());
  const DownSections& sections = c_.sums.sections();
  if (first + count == sections.End(sections.Of(first))) EndSection(x.size(), y);
  CountTouched(count, x.size());
  return absl::OkStatus();
}

void StreamFfn::CountTouched(uint32_t count, size_t n_tokens) {
  if (c_.bundles().has_up) touched_rows_ += n_used(count);
  for (uint32_t r = 0; r < count; ++r) {
    bool adds = false;
    for (size_t t = 0; t < n_tokens && !adds; ++t) adds = coefficients_[t * kWindow + r] != 0.0f;
    touched_rows_ += adds;
  }
}

void StreamFfn::ComputeRows(uint32_t layer, uint32_t first, uint32_t begin, uint32_t end,
                            bool fresh, const float* gate, std::span<const VectorView> x,
                            int thread) {
  for (uint32_t r = begin; r < end; ++r) {
    bool used = false;
    for (size_t t = 0; t < x.size(); ++t) {
      const float a = c_.Act(gate[t * c_.bundles().d_ff + first + r]);
      const bool active = options_.selector == nullptr || options_.selector->IsActive(layer, a);
      coefficients_[t * kWindow + r] = active ? a : 0.0f;
      used |= active;
    }
    used_[r] = used;
    const bool check = is_wanted(r) && (fresh || c_.MustCheckMapped(layer, first + r));
    damaged_[r] = check && !c_.file.BundleIsIntact(layer, first + r, c_.payload(bundles_[r]));
    down_[r] = bundles_[r] + c_.bundles().down_offset();
  }
  if (!c_.bundles().has_up) return;
  if (x.size() == 1) {
    ComputeRowsOfOneToken(begin, end, x[0]);
  } else if (options_.selector == nullptr) {
    ComputeAllRows(begin, end, x);
  } else {
    for (uint32_t r = begin; r < end; ++r) {
      if (used_[r] && !damaged_[r]) ComputeRow(r, x, thread);
    }
  }
}

// Where no neuron is left out. What comes out for a damaged row is not used.
void StreamFfn::ComputeAllRows(uint32_t begin, uint32_t end, std::span<const VectorView> x) {
  const std::byte* rows[kWindow];
  for (uint32_t r = begin; r < end; ++r) rows[r - begin] = bundles_[r] + c_.bundles().up_offset();
  const RowSet set = {.pointers = rows, .n_rows = end - begin};
  c_.kernels.dot[c_.type()](set, c_.bundles().d_model, x.data(), x.size(), &up_[begin], kWindow);
  for (size_t t = 0; t < x.size(); ++t) {
    for (size_t i = t * kWindow + begin; i < t * kWindow + end; ++i) {
      coefficients_[i] = c_.Coefficient(coefficients_[i], up_[i]);
    }
  }
}

// One row and the tokens for which its neuron is active.
void StreamFfn::ComputeRow(uint32_t row, std::span<const VectorView> x, int thread) {
  const size_t scratch = static_cast<size_t>(thread) * options_.max_tokens;
  VectorView* views = &thread_views_[scratch];
  uint32_t* tokens = &thread_tokens_[scratch];
  float* up = &up_[row];
  uint32_t n = 0;
  for (uint32_t t = 0; t < x.size(); ++t) {
    if (options_.selector != nullptr && coefficients_[size_t{t} * kWindow + row] == 0.0f) continue;
    views[n] = x[t];
    tokens[n++] = t;
  }
  RowSet set;
  set.base = bundles_[row] + c_.bundles().up_offset();
  set.n_rows = 1;
  c_.kernels.dot[c_.type()](set, c_.bundles().d_model, views, n, up, kWindow);
  for (uint32_t i = 0; i < n; ++i) {
    float& c = coefficients_[size_t{tokens[i]} * kWindow + row];
    c = c_.Coefficient(c, up[size_t{i} * kWindow]);
  }
}

// Many rows at once, so that the kernel has independent sums to work on.
void StreamFfn::ComputeRowsOfOneToken(uint32_t begin, uint32_t end, const VectorView& x) {
  const std::byte* rows[kWindow];
  uint32_t indices[kWindow];
  float up[kWindow];
  RowSet set;
  set.pointers = rows;
  for (uint32_t r = begin; r < end; ++r) {
    if (!used_[r] || damaged_[r]) continue;
    rows[set.n_rows] = bundles_[r] + c_.bundles().up_offset();
    indices[set.n_rows++] = r;
  }
  c_.kernels.dot[c_.type()](set, c_.bundles().d_model, &x, 1, up, kWindow);
  for (size_t i = 0; i < set.n_rows; ++i) {
    float& c = coefficients_[indices[i]];
    c = c_.Coefficient(c, up[i]);
  }
}

// Threads take tokens, or of few tokens columns.
void StreamFfn::AddDownOfTokens(uint32_t count, size_t n_tokens) {
  const RowSet rows = {.pointers = down_.data(), .n_rows = count};
  const size_t d = c_.bundles().d_model;
  const auto axpy = c_.kernels.axpy[c_.type()];
  const size_t bytes = count * c_.bundles().row_bytes();
  if (n_tokens < static_cast<size_t>(c_.pool.n_threads())) {
    constexpr size_t kUnit = 128;  // what AXPY kernels ask of range ends
    c_.pool.Run(d, WorthwhileGrain(bytes / d + 1, kUnit), [&](size_t begin, size_t end, int) {
      for (size_t t = 0; t < n_tokens; ++t) {
        axpy(rows, d, &coefficients_[t * kWindow], begin, end, &section_sums_[t * d]);
      }
    });
    return;
  }
  c_.pool.Run(n_tokens, WorthwhileGrain(bytes, 1), [&](size_t begin, size_t end, int) {
    for (size_t t = begin; t < end; ++t) {
      axpy(rows, d, &coefficients_[t * kWindow], 0, d, &section_sums_[t * d]);
    }
  });
}

void StreamFfn::EndSection(size_t n_tokens, float* y) {
  const size_t n = n_tokens * c_.bundles().d_model;
  c_.pool.Run(n, WorthwhileGrain(3 * sizeof(float), 64), [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) y[i] += section_sums_[i];
    std::fill(&section_sums_[begin], section_sums_.data() + end, 0.0f);
  });
}

void StreamFfn::Keep(uint32_t layer, uint32_t first, uint32_t count) {
  kept_rows_.clear();
  for (uint32_t r = 0; r < count && c_.cache->n_free() > 0; ++r) {
    if (options_.keep == CacheSegment::kHot && kept_[layer] >= options_.keep_per_layer) break;
    if (!is_wanted(r) || c_.cache->Contains(layer, first + r)) continue;
    pins_[r] = c_.cache->Reserve(layer, first + r, options_.keep);
    kept_rows_.push_back(r);
    ++kept_[layer];
  }
  const size_t bytes = c_.bundles().payload_bytes();
  c_.pool.Run(kept_rows_.size(), WorthwhileGrain(bytes, 1), [&](size_t begin, size_t end, int) {
    for (size_t i = begin; i < end; ++i) {
      const uint32_t r = kept_rows_[i];
      std::memcpy(pins_[r].data(), bundles_[r], bytes);
    }
  });
  for (const uint32_t r : kept_rows_) {
    c_.cache->MarkLoaded(pins_[r].slot());
    pins_[r].Reset();
  }
}

}  // namespace sluice
