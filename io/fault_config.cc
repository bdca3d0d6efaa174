// The text form of FaultConfig.
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "io/fault_engine.h"
#include "io/status.h"

namespace sluice {
namespace {

struct ShareKey {
  const char* name;
  double FaultConfig::*field;
};
constexpr ShareKey kShares[] = {
    {"short", &FaultConfig::short_read}, {"eintr", &FaultConfig::eintr},
    {"eagain", &FaultConfig::eagain},    {"eio_once", &FaultConfig::eio_once},
    {"einval", &FaultConfig::einval},    {"unwritten", &FaultConfig::unwritten},
    {"delay", &FaultConfig::delay},
};

struct FlagKey {
  const char* name;
  bool FaultConfig::*field;
};
constexpr FlagKey kFlags[] = {{"reorder", &FaultConfig::reorder}, {"few", &FaultConfig::few}};

absl::Status BadValue(const std::string& key, const std::string& value, const char* expected) {
  return absl::InvalidArgumentError(
      absl::StrCat("fault '", key, "': '", value, "' is not ", expected));
}

absl::Status SetEioRange(const std::string& value, FaultConfig* config) {
  const std::vector<std::string> ends = absl::StrSplit(value, '-');
  if (ends.size() != 2 || !absl::SimpleAtoi(ends[0], &config->eio_begin) ||
      !absl::SimpleAtoi(ends[1], &config->eio_end) || config->eio_begin >= config->eio_end) {
    return BadValue("eio", value, "a range of bytes such as 4096-8192");
  }
  return absl::OkStatus();
}

absl::Status SetKey(const std::string& key, const std::string& value, FaultConfig* config) {
  for (const ShareKey& share : kShares) {
    if (key != share.name) continue;
    double parsed = 0;
    // Written so that NaN fails too.
    if (!absl::SimpleAtod(value, &parsed) || !(parsed >= 0 && parsed <= 1)) {
      return BadValue(key, value, "a share from 0 to 1");
    }
    config->*share.field = parsed;
    return absl::OkStatus();
  }
  for (const FlagKey& flag : kFlags) {
    if (key != flag.name) continue;
    if (value != "0" && value != "1") return BadValue(key, value, "0 or 1");
    config->*flag.field = value == "1";
    return absl::OkStatus();
  }
  if (key == "seed") {
    if (absl::SimpleAtoi(value, &config->seed)) return absl::OkStatus();
    return BadValue(key, value, "a number");
  }
  if (key == "delay_reaps") {
    constexpr uint32_t kMostReaps = 1000;
    if (absl::SimpleAtoi(value, &config->delay_reaps) && config->delay_reaps <= kMostReaps) {
      return absl::OkStatus();
    }
    return BadValue(key, value, "a number from 0 to 1000");
  }
  if (key == "eio") return SetEioRange(value, config);
  return absl::InvalidArgumentError(
      absl::StrCat("fault '", key,
                   "' is unknown; known are seed, short, eintr, eagain, eio_once, eio, einval, "
                   "unwritten, delay, delay_reaps, reorder, few"));
}

}  // namespace

absl::StatusOr<FaultConfig> ParseFaultConfig(std::string_view spec) {
  FaultConfig config;
  const std::vector<std::string> entries = absl::StrSplit(ToAbsl(spec), ',', absl::SkipEmpty());
  for (const std::string& entry : entries) {
    const std::vector<std::string> parts = absl::StrSplit(entry, absl::MaxSplits('=', 1));
    if (parts.size() != 2) {
      return absl::InvalidArgumentError(absl::StrCat("fault '", entry, "' is not KEY=VALUE"));
    }
    SLUICE_RETURN_IF_ERROR(SetKey(parts[0], parts[1], &config));
  }
  return config;
}

}  // namespace sluice
