#include "io/suite/axes.h"

#include <algorithm>
#include <functional>
#include <set>
#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr std::string_view kUnits = "KMGT";
constexpr size_t kMostValues = 1000;

absl::Status NotANumber(std::string_view text, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("\"%s\" is not %s", text, what));
}

absl::StatusOr<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(ToAbsl(text), &value) || value == 0 || value > INT32_MAX) {
    return NotANumber(text, "a whole number above 0");
  }
  return value;
}

using Parser = std::function<absl::StatusOr<uint64_t>(std::string_view)>;

// One element of a list: a value, or FIRST-LAST or FIRST-LAST*FACTOR.
absl::Status AppendElement(std::string_view element, const Parser& parse,
                           std::vector<uint64_t>& out) {
  const size_t dash = element.find('-');
  if (dash == std::string_view::npos) {
    SLUICE_ASSIGN_OR_RETURN(const uint64_t value, parse(element));
    out.push_back(value);
    return absl::OkStatus();
  }
  const std::string_view rest = element.substr(dash + 1);
  const size_t star = rest.find('*');
  SLUICE_ASSIGN_OR_RETURN(const uint64_t first, parse(element.substr(0, dash)));
  SLUICE_ASSIGN_OR_RETURN(const uint64_t last, parse(rest.substr(0, star)));
  uint64_t factor = 2;
  if (star != std::string_view::npos) {
    SLUICE_ASSIGN_OR_RETURN(factor, ParseNumber(rest.substr(star + 1)));
  }
  if (first > last || factor < 2) {
    return NotANumber(element, "a rising range FIRST-LAST*FACTOR with a factor of 2 or more");
  }
  for (uint64_t value = first; value <= last; value *= factor) {
    out.push_back(value);
    if (value > last / factor) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint64_t>> ParseList(std::string_view text, const Parser& parse) {
  std::vector<uint64_t> values;
  for (const absl::string_view element : absl::StrSplit(ToAbsl(text), ',')) {
    SLUICE_RETURN_IF_ERROR(AppendElement(ToStd(element), parse, values));
    if (values.size() > kMostValues) {
      return absl::InvalidArgumentError(
          absl::StrCat("a list of more than ", kMostValues, " values"));
    }
  }
  return values;
}

}  // namespace

absl::StatusOr<uint64_t> ParseSize(std::string_view text) {
  constexpr std::string_view kWhat = "a size such as 4k, 1M or 2G";
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  uint64_t value = 0;
  if (!absl::SimpleAtoi(ToAbsl(text.substr(0, digits)), &value) || value == 0) {
    return NotANumber(text, kWhat);
  }
  if (digits == text.size())
    return value <= INT64_MAX ? absl::StatusOr<uint64_t>(value) : NotANumber(text, kWhat);
  const char unit =
      text[digits] >= 'a' ? static_cast<char>(text[digits] - 'a' + 'A') : text[digits];
  const size_t power = kUnits.find(unit);
  const std::string_view rest = text.substr(digits + 1);
  if (power == std::string_view::npos || !(rest.empty() || rest == "iB" || rest == "B")) {
    return NotANumber(text, kWhat);
  }
  const size_t shift = 10 * (power + 1);
  if (value > static_cast<uint64_t>(INT64_MAX) >> shift) return NotANumber(text, kWhat);
  return value << shift;
}

absl::StatusOr<std::vector<uint64_t>> ParseSizes(std::string_view text) {
  return ParseList(text, ParseSize);
}

absl::StatusOr<std::vector<uint64_t>> ParseNumbers(std::string_view text) {
  return ParseList(text, ParseNumber);
}

std::string FormatSize(uint64_t bytes) {
  constexpr std::string_view kSuffixes = "kMGT";
  size_t power = 0;
  while (power < kSuffixes.size() && bytes != 0 && bytes % 1024 == 0) {
    bytes /= 1024;
    ++power;
  }
  std::string text = absl::StrCat(bytes);
  if (power > 0) text += kSuffixes[power - 1];
  return text;
}

std::string ShortSize(uint64_t bytes) {
  constexpr size_t kMostCharacters = 6;
  std::string exact = FormatSize(bytes);
  if (exact.size() <= kMostCharacters) return exact;
  size_t power = 0;
  auto value = static_cast<double>(bytes);
  for (; value >= 999.5 && power < kUnits.size(); ++power) value /= 1024;
  constexpr std::string_view kSuffixes = "kMGT";
  return absl::StrFormat("%.3g%c", value, kSuffixes[power - 1]);
}

std::vector<Axes> Axes::Phone(const std::vector<int>& cores) {
  constexpr uint64_t kMiB = 1 << 20;
  Axes blocks;
  blocks.blocks = {4096, 16384, 65536, 262144, 524288, kMiB};
  blocks.depths = {32};
  Axes ranges;
  ranges.random = {true};
  ranges.blocks = {4096, 8192, 16384, 32768};
  ranges.ranges = {32 * kMiB, 128 * kMiB, 256 * kMiB, 512 * kMiB};
  ranges.depths = {32};
  Axes by_core;
  by_core.random = {true};
  by_core.ranges = {128 * kMiB};
  by_core.depths = {1, 32};
  by_core.cores = cores;
  Axes by_jobs;
  by_jobs.random = {true};
  by_jobs.ranges = {128 * kMiB};
  by_jobs.depths = {8};
  by_jobs.jobs = {1, 2, 4};
  return {blocks, ranges, by_core, by_jobs};
}

uint64_t CountCells(const Axes& axes) {
  uint64_t count = 1;
  for (const size_t n :
       {axes.random.size(), axes.engines.size(), axes.direct.size(), axes.blocks.size(),
        axes.ranges.size(), axes.depths.size(), axes.cores.size(), axes.jobs.size()}) {
    if (__builtin_mul_overflow(count, n, &count)) return UINT64_MAX;
  }
  return count;
}

std::vector<LoadSpec> ExpandAxes(const Axes& axes, uint64_t file_bytes, const LoadSpec& base,
                                 size_t* n_left_out) {
  std::vector<LoadSpec> specs = {base};
  // Replaces every cell by one for each value of an axis.
  const auto expand = [&specs](const auto& values, auto set) {
    std::vector<LoadSpec> next;
    for (const LoadSpec& spec : specs) {
      for (const auto& value : values) {
        next.push_back(spec);
        set(next.back(), value);
      }
    }
    specs = std::move(next);
  };
  expand(axes.engines, [](LoadSpec& s, LoadEngine v) { s.engine = v; });
  expand(axes.direct, [](LoadSpec& s, bool v) { s.direct = v; });
  expand(axes.jobs, [](LoadSpec& s, uint64_t v) { s.n_jobs = static_cast<int>(v); });
  expand(axes.cores, [](LoadSpec& s, int v) { s.core = v; });
  expand(axes.ranges, [](LoadSpec& s, uint64_t v) { s.range = v; });
  expand(axes.random, [](LoadSpec& s, bool v) { s.random = v; });
  expand(axes.depths, [](LoadSpec& s, uint64_t v) { s.depth = static_cast<uint32_t>(v); });
  expand(axes.blocks, [](LoadSpec& s, uint64_t v) { s.block = static_cast<uint32_t>(v); });
  for (LoadSpec& s : specs) {
    const uint64_t whole = file_bytes - std::min(base.offset, file_bytes);
    s.range = s.range == 0 ? whole : std::min(s.range, whole);
  }
  const size_t n_too_small =
      std::erase_if(specs, [](const LoadSpec& s) { return s.range / s.block < LeastBlocks(s); });
  if (n_left_out != nullptr) *n_left_out += n_too_small;
  return specs;
}

std::vector<LoadSpec> WithoutRepeats(const std::vector<LoadSpec>& cells) {
  const auto key = [](const LoadSpec& s) {
    return std::tuple(s.random, s.engine, s.direct, s.block, s.offset, s.range, s.depth, s.core,
                      s.n_jobs);
  };
  std::set<decltype(key(LoadSpec()))> seen;
  std::vector<LoadSpec> out;
  for (const LoadSpec& s : cells) {
    if (seen.insert(key(s)).second) out.push_back(s);
  }
  return out;
}

}  // namespace sluice
