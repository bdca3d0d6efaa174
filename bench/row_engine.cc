#include "bench/row_engine.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/status.h"

namespace sluice {

RowEngine::RowEngine(std::unique_ptr<ReadEngine> inner, const BundleLayout& bundles,
                     std::shared_ptr<std::atomic<uint64_t>> operations)
    : inner_(std::move(inner)),
      operations_(std::move(operations)),
      bundles_(bundles),
      row_bytes_(static_cast<uint32_t>(bundles.row_bytes())),
      n_rows_(static_cast<uint32_t>(bundles.payload_bytes() / bundles.row_bytes())),
      description_(absl::StrCat("row by row over ", inner_->description())),
      wholes_(inner_->depth() / n_rows_),
      inner_results_(inner_->depth()) {
  for (uint32_t i = 0; i < wholes_.size(); ++i) free_.push_back(i);
}

absl::StatusOr<uint32_t> RowEngine::Submit(std::span<const ReadOp> ops) {
  uint32_t taken = 0;
  for (; taken < ops.size() && !free_.empty(); ++taken) {
    SLUICE_RETURN_IF_ERROR(SubmitParts(ops[taken], free_.back()));
    free_.pop_back();
  }
  return taken;
}

absl::Status RowEngine::SubmitParts(const ReadOp& op, uint64_t index) {
  Whole& whole = wholes_[index];
  whole = {.user = op.user, .length = op.length};
  const uint32_t n = op.length == bundles_.stride ? n_rows_ : 1;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t begin = i * row_bytes_ / bundles_.block * bundles_.block;
    uint32_t end = ((i + 1) * row_bytes_ + bundles_.block - 1) / bundles_.block * bundles_.block;
    if (i + 1 == n) end = op.length;
    const ReadOp part = {op.fd, op.offset + begin, end - begin, op.dst + begin, index};
    SLUICE_ASSIGN_OR_RETURN(const uint32_t accepted, inner_->Submit({&part, 1}));
    if (accepted == 0) return absl::InternalError("the engine is fuller than its depth");
    ++whole.n_parts;
  }
  operations_->fetch_add(n);
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> RowEngine::Reap(std::span<ReadResult> results, bool wait) {
  const auto most = std::min(results.size(), inner_results_.size());
  SLUICE_ASSIGN_OR_RETURN(const uint32_t n,
                          inner_->Reap(std::span(inner_results_).first(most), wait));
  uint32_t done = 0;
  for (const ReadResult& r : std::span(inner_results_).first(n)) {
    Whole& whole = wholes_[r.user];
    if (r.result <= 0) whole.error = r.result < 0 ? r.result : -EIO;
    if (--whole.n_parts > 0) continue;
    const int32_t result = whole.error != 0 ? whole.error : static_cast<int32_t>(whole.length);
    results[done++] = {whole.user, result};
    free_.push_back(static_cast<uint32_t>(r.user));
  }
  return done;
}

}  // namespace sluice
