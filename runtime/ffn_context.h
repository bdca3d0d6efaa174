// What both ways through an FFN share: the model, where its bundles are, and the two steps on a set
// of bundles (up dots, then down AXPY) with their fixed summation order.
#ifndef SLUICE_RUNTIME_FFN_CONTEXT_H_
#define SLUICE_RUNTIME_FFN_CONTEXT_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "cache/neuron_cache.h"
#include "layout/sluice_file.h"
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

  const BundleLayout& bundles() const { return file.bundles(); }
  size_t type() const { return static_cast<size_t>(bundles().type); }
  std::span<const std::byte> payload(const std::byte* bundle) const {
    return {bundle, bundles().payload_bytes()};
  }
  float Act(float gate) const;

  // y += c[r] * down column of bundles[r], r in rising order; spread over the outputs, so that the
  // order of the sum of each output is that of r.
  void AddDown(std::span<const std::byte* const> down_columns, const float* c, float* y) const;

  // Reads a bundle that did not match its checksum once more, buffered, into `bundle`; DataLoss if
  // it still does not.
  absl::Status Repair(uint32_t layer, uint32_t position, std::byte* bundle) const;
  absl::Status Damaged(uint32_t layer, uint32_t position) const;
};

}  // namespace sluice

#endif  // SLUICE_RUNTIME_FFN_CONTEXT_H_
