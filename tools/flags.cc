#include "tools/flags.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "io/clock.h"
#include "io/status.h"
#include "runtime/memory_plan.h"

namespace sluice {
namespace {

double NowSeconds() { return static_cast<double>(NowNs()) / 1e9; }

}  // namespace

const CLI::Validator& NotEmpty() {
  static const CLI::Validator validator(
      [](const std::string& text) { return text.empty() ? "an empty text is not a value" : ""; },
      "");
  return validator;
}

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  const auto unusable = [&](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is not a size (%s); write a number with a unit (B, K, M, G, T), such as 512M or 2G",
        text, why));
  };
  const size_t digits = text.find_first_not_of("0123456789.");
  double number = 0;
  if (digits == 0 || !absl::SimpleAtod(ToAbsl(text.substr(0, digits)), &number)) {
    return unusable("no number");
  }
  if (digits == std::string_view::npos) return unusable("no unit");
  std::string_view unit = text.substr(digits);
  if (unit == "B") return static_cast<uint64_t>(number);
  constexpr std::string_view kUnits = "KMGT";
  const size_t power =
      kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit.front()))));
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "B" || rest == "iB")) {
    return unusable("unknown unit");
  }
  const double bytes = number * std::pow(1024.0, static_cast<double>(power) + 1);
  if (!(bytes < 9e18)) return unusable("too large");
  return static_cast<uint64_t>(bytes);
}

int ReportError(const absl::Status& status) {
  absl::FPrintF(stderr, "sluice: %s\n", status.message());
  return kExitError;
}

int ReportUsage(const absl::Status& status) {
  ReportError(status);
  return kExitUsage;
}

int ReportStopped(const StopSignals& signals, const std::string& path) {
  absl::FPrintF(stderr, "sluice: stopped; %s was not written\n", path);
  return signals.exit_code();
}

ProgressLine::ProgressLine(std::string label, std::string unit)
    : label_(std::move(label)),
      unit_(std::move(unit)),
      terminal_(isatty(STDERR_FILENO) == 1),
      begin_(NowSeconds()) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && last_ > 0) absl::FPrintF(stderr, "\r\033[K");
}

std::string ProgressLine::Amount(double n) const {
  return unit_.empty() ? FormatBytes(static_cast<uint64_t>(n))
                       : absl::StrFormat("%.0f %s", n, unit_);
}

void ProgressLine::Update(uint64_t done, uint64_t total) {
  const double now = NowSeconds();
  if (!terminal_ || total == 0 || (now - last_ < 0.2 && done != total)) return;
  last_ = now;
  const double rate = static_cast<double>(done) / std::max(now - begin_, 1e-3);
  absl::FPrintF(stderr, "\r\033[K%s: %.0f %% of %s, %s/s, %.0f s left", label_,
                100.0 * static_cast<double>(done) / static_cast<double>(total),
                Amount(static_cast<double>(total)), Amount(rate),
                static_cast<double>(total - done) / std::max(rate, 1.0));
  fflush(stderr);
}

}  // namespace sluice
