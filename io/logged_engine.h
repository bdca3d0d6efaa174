// An engine that logs when every read was submitted and when its result came back: a decorator over
// another one.
#ifndef SLUICE_IO_LOGGED_ENGINE_H_
#define SLUICE_IO_LOGGED_ENGINE_H_

#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "io/read_engine.h"
#include "io/span_log.h"

namespace sluice {

class LoggedEngine final : public ReadEngine {
 public:
  // Spans named "read" go to `lane` of `log`, which must outlive the engine and is written by the
  // thread that drives it.
  LoggedEngine(std::unique_ptr<ReadEngine> inner, SpanLog* log, size_t lane)
      : inner_(std::move(inner)), log_(log), lane_(lane) {
    in_flight_.reserve(inner_->depth());
  }

  const std::string& description() const override { return inner_->description(); }
  uint32_t depth() const override { return inner_->depth(); }
  absl::StatusOr<uint32_t> Submit(std::span<const ReadOp> ops) override;
  absl::StatusOr<uint32_t> Reap(std::span<ReadResult> results, bool wait) override;
  void Wake() override { inner_->Wake(); }

 private:
  struct InFlight {
    uint64_t user;
    Span span;
  };

  const std::unique_ptr<ReadEngine> inner_;
  SpanLog* const log_;
  const size_t lane_;
  std::vector<InFlight> in_flight_;
};

}  // namespace sluice

#endif  // SLUICE_IO_LOGGED_ENGINE_H_
