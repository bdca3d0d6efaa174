// What a layout without bundles would read: each read of a bundle is done as one operation a row
// (up, down, and gate where bundles have it), as if rows of different matrices lay apart.
#ifndef SLUICE_BENCH_ROW_ENGINE_H_
#define SLUICE_BENCH_ROW_ENGINE_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "io/read_engine.h"
#include "layout/sluice_format.h"

namespace sluice {

// Short reads are not made good: the checksum of the bundle would tell.
class RowEngine final : public ReadEngine {
 public:
  // Reads of other lengths than a bundle's pass as they are. Rows begin and end at multiples of the
  // bundles' block, as they would in a matrix of their own. Counts what goes to `inner`.
  RowEngine(std::unique_ptr<ReadEngine> inner, const BundleLayout& bundles,
            std::shared_ptr<std::atomic<uint64_t>> operations);

  const std::string& description() const override { return description_; }
  // So many that all rows find room below.
  uint32_t depth() const override { return static_cast<uint32_t>(wholes_.size()); }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override;
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) override;
  void Wake() override { inner_->Wake(); }

 private:
  // A read that this engine was asked for; its index is the inner engine's `user`.
  struct Whole {
    uint64_t user = 0;
    uint32_t length = 0;
    uint32_t n_parts = 0;  // in flight
    int32_t error = 0;
  };

  absl::Status SubmitParts(const ReadOp& op, uint64_t index);

  std::unique_ptr<ReadEngine> inner_;
  const std::shared_ptr<std::atomic<uint64_t>> operations_;
  const BundleLayout& bundles_;
  const uint32_t row_bytes_, n_rows_;
  const std::string description_;
  std::vector<Whole> wholes_;
  std::vector<uint32_t> free_;
  std::vector<ReadResult> inner_results_;
};

}  // namespace sluice

#endif  // SLUICE_BENCH_ROW_ENGINE_H_
