// What both ways through an FFN share: the model, where its bundles are, and the two steps on a set
// of bundles (up dots where there is a gate, then down AXPY) with their fixed summation order.
#ifndef SLUICE_RUNTIME_FFN_CONTEXT_H_
#define SLUICE_RUNTIME_FFN_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "cache/neuron_cache.h"
#include "io/span_log.h"
#include "layout/sluice_file.h"
#include "runtime/down_sums.h"
#include "runtime/kernels/kernels.h"
#include "runtime/stream_ring.h"
#include "runtime/thread_pool.h"
#include "runtime/weight_io.h"

namespace sluice {

// Borrowed references; thread-compatible.
struct FfnContext {
  const SluiceFile& file;
  const KernelTable& kernels;
  ThreadPool& pool;
  WeightIo& io;
  StreamRing& ring;
  NeuronCache* cache;    // not used if mapped
  const std::byte* map;  // the whole file, or null
  // Mapped: bundles that were found intact, by layer and position; each is checked when first used.
  std::vector<bool>& map_checked;
  DownSums& sums;            // of the token that is being computed
  SpanLog* spans = nullptr;  // null: nothing is logged

  const BundleLayout& bundles() const { return file.bundles(); }
  size_t type() const { return static_cast<size_t>(bundles().type); }
  std::span<const std::byte> payload(const std::byte* bundle) const {
    return {bundle, bundles().payload_bytes()};
  }
  float Act(float gate) const;
  // What a down column is multiplied by: `act` is Act(gate).
  float Coefficient(float act, float up) const {
    return act * (up < 0.0f && file.config().rectifies_up() ? 0.0f : up);
  }
  size_t MapKey(uint32_t layer, uint32_t position) const {
    return size_t{layer} * bundles().d_ff + position;
  }
  // Whether a bundle that was not `just_read` must be checked all the same.
  bool MustCheckMapped(uint32_t layer, uint32_t position) const {
    return map != nullptr && !map_checked[MapKey(layer, position)];
  }

  // y += c[r] * down_columns[r], in rising r.
  void AddDown(std::span<const std::byte* const> down_columns, const float* c, float* y) const {
    const RowSet rows = {.pointers = down_columns.data(), .n_rows = down_columns.size()};
    kernels.axpy[type()](rows, bundles().d_model, c, 0, bundles().d_model, y);
  }

  // Reads a bundle that did not match its checksum once more, buffered, into `bundle`; DataLoss if
  // it still does not.
  absl::Status Repair(uint32_t layer, uint32_t position, std::byte* bundle) const;
  absl::Status Damaged(uint32_t layer, uint32_t position) const;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_FFN_CONTEXT_H_
