#include "tools/bench_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "runtime/generation.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

uint32_t TokensOf(const BenchTest& test) { return test.n_prompt + test.n_gen; }

double Rate(const BenchTest& test, const BenchSample& sample) {
  return TokensOf(test) * 1e9 / static_cast<double>(sample.wall_ns);
}

std::vector<double> Rates(const BenchRow& row) {
  std::vector<double> rates;
  for (const BenchSample& s : row.samples) rates.push_back(Rate(row.test, s));
  return rates;
}

double Mean(const std::vector<double>& v) {
  double sum = 0;
  for (const double x : v) sum += x;
  return sum / static_cast<double>(v.size());
}

double Deviation(const std::vector<double>& v) {
  if (v.size() < 2) return 0;
  const double mean = Mean(v);
  double squares = 0;
  for (const double x : v) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / static_cast<double>(v.size() - 1));
}

double Median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  const size_t half = v.size() / 2;
  return v.size() % 2 == 1 ? v[half] : (v[half - 1] + v[half]) / 2;
}

std::optional<double> Share(uint64_t part, uint64_t whole) {
  if (whole == 0) return std::nullopt;
  return static_cast<double>(part) / static_cast<double>(whole);
}

Json OrNull(const std::optional<double>& v) { return v ? Json(*v) : Json(nullptr); }

std::string Fixed(const std::optional<double>& v, int digits, double factor = 1) {
  return v ? absl::StrFormat("%.*f", digits, factor * *v) : "-";
}

DecoderStats SumOf(const BenchRow& row, uint64_t* wall_ns) {
  DecoderStats sum;
  for (const BenchSample& s : row.samples) {
    *wall_ns += s.wall_ns;
    sum.hits += s.stats.hits;
    sum.misses += s.stats.misses;
    sum.active_neurons += s.stats.active_neurons;
    sum.gated_neurons += s.stats.gated_neurons;
    sum.flash_bytes += s.stats.flash_bytes;
    sum.flash_operations += s.stats.flash_operations;
    sum.stall_ns += s.stats.stall_ns;
    sum.touched_bytes += s.stats.touched_bytes;
  }
  return sum;
}

Json RowJson(const BenchRow& row) {
  const BenchFigures f = FiguresOf(row);
  const bool mapped = row.plan.request.mapped;  // then the kernel reads, and tells no one
  const auto unless_mapped = [&](const Json& v) { return mapped ? Json(nullptr) : v; };
  Json samples_ns = Json::array();
  double mean_ns = 0;
  for (const BenchSample& s : row.samples) {
    samples_ns.push_back(s.wall_ns);
    mean_ns += static_cast<double>(s.wall_ns) / static_cast<double>(row.samples.size());
  }
  Json budget = nullptr;
  if (row.plan.request.budget != UINT64_MAX) budget = row.plan.request.budget;
  return {{"model_filename", row.model},
          {"model_size", row.model_bytes},
          {"version", SLUICE_VERSION},
          {"n_prompt", row.test.n_prompt},
          {"n_gen", row.test.n_gen},
          {"n_depth", row.test.depth},
          {"n_threads", row.plan.request.n_threads},
          {"n_batch", row.plan.chunk},
          {"mode", DecodeModeName(row.plan.request.mode)},
          {"mem_budget", row.budget},
          {"mem_budget_bytes", std::move(budget)},
          {"mem_planned_bytes", row.plan.total},
          {"cache", row.cold ? "cold" : "warm"},
          {"avg_ns", mean_ns},
          {"avg_ts", f.avg_ts},
          {"stddev_ts", f.stddev_ts},
          {"median_ts", f.median_ts},
          {"samples_ns", std::move(samples_ns)},
          {"samples_ts", Rates(row)},
          {"tbt_p50_ms", OrNull(f.p50_ms)},
          {"tbt_p95_ms", OrNull(f.p95_ms)},
          {"tbt_p99_ms", OrNull(f.p99_ms)},
          {"compute_share", unless_mapped(f.compute_share)},
          {"stall_share", unless_mapped(f.stall_share)},
          {"flash_bytes_per_token", unless_mapped(f.flash_bytes)},
          {"flash_operations_per_token", unless_mapped(f.flash_operations)},
          {"hit_rate", unless_mapped(OrNull(f.hit_rate))},
          {"active_share", OrNull(f.active_share)},
          {"touched_bytes_per_token", f.touched_bytes},
          {"memory_bandwidth", row.memory_bandwidth},
          {"disk_bandwidth", OrNull(row.disk_bandwidth)},
          {"disk_block", row.disk_bandwidth ? Json(row.disk_block) : Json(nullptr)},
          {"limit_ts", OrNull(f.limit_ts)},
          {"of_limit", OrNull(f.of_limit)},
          {"load_ms", static_cast<double>(row.load_ns) / 1e6},
          {"notes", row.notes}};
}

std::string Dump(const Json& json, int indent) {
  // A path that is not UTF-8 must not spoil the document.
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

// Every scalar of the JSON form, and samples as "a;b".
std::string CsvCell(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_array()) {
    std::vector<std::string> parts;
    for (const Json& v : value) parts.push_back(v.is_string() ? v.get<std::string>() : Dump(v, -1));
    return CsvCell(Json(absl::StrJoin(parts, ";")));
  }
  if (!value.is_string()) return Dump(value, -1);
  std::string quoted = "\"";
  for (const char c : value.get<std::string>()) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

std::string CsvLine(const std::vector<std::string>& cells) {
  return absl::StrJoin(cells, ",") + "\n";
}

std::string MarkdownRow(const BenchRow& row) {
  const BenchFigures f = FiguresOf(row);
  const bool mapped = row.plan.request.mapped;
  return absl::StrFormat(
      "| %s | %s | %s | %d | %s | %.2f ± %.2f | %s | %s | %s | %s | %s | %s | %s |\n",
      row.model.substr(row.model.rfind('/') + 1), DecodeModeName(row.plan.request.mode), row.budget,
      row.plan.request.n_threads, BenchTestName(row.test), f.avg_ts, f.stddev_ts,
      Fixed(f.p50_ms, 2), Fixed(f.p99_ms, 2),
      mapped ? "-" : absl::StrFormat("%.2f", f.flash_bytes / 1e6),
      mapped ? "-" : absl::StrFormat("%.1f", f.flash_operations), Fixed(f.hit_rate, 1, 100),
      mapped ? "-" : absl::StrFormat("%.0f", 100 * f.stall_share), Fixed(f.of_limit, 0, 100));
}

}  // namespace

BenchFigures FiguresOf(const BenchRow& row) {
  BenchFigures f;
  const std::vector<double> rates = Rates(row);
  f.avg_ts = Mean(rates);
  f.stddev_ts = Deviation(rates);
  f.median_ts = Median(rates);
  uint64_t wall_ns = 0;
  const DecoderStats sum = SumOf(row, &wall_ns);
  const double n_tokens = static_cast<double>(row.samples.size()) * TokensOf(row.test);
  f.stall_share = static_cast<double>(sum.stall_ns) / static_cast<double>(wall_ns);
  f.compute_share = 1 - f.stall_share;
  f.flash_bytes = static_cast<double>(sum.flash_bytes) / n_tokens;
  f.flash_operations = static_cast<double>(sum.flash_operations) / n_tokens;
  f.touched_bytes = static_cast<double>(sum.touched_bytes) / n_tokens;
  f.hit_rate = Share(sum.hits, sum.hits + sum.misses);
  f.active_share = Share(sum.active_neurons, sum.gated_neurons);
  if (row.test.n_gen == 0) return f;
  std::vector<uint64_t> token_ns;
  for (const BenchSample& s : row.samples) {
    token_ns.insert(token_ns.end(), s.token_ns.begin(), s.token_ns.end());
  }
  const auto percentile = [&](double q) {
    return static_cast<double>(Percentile(token_ns, q)) / 1e6;
  };
  f.p50_ms = percentile(0.5);
  f.p95_ms = percentile(0.95);
  f.p99_ms = percentile(0.99);
  if (row.test.n_prompt > 0 || row.plan.request.mapped) return f;
  const double least_ns = LeastNs(sum, row.memory_bandwidth, row.disk_bandwidth.value_or(INFINITY));
  f.limit_ts = n_tokens * 1e9 / least_ns;
  f.of_limit = least_ns / static_cast<double>(wall_ns);
  return f;
}

std::string BenchTestName(const BenchTest& test) {
  std::string name;
  if (test.n_prompt > 0) absl::StrAppend(&name, "pp", test.n_prompt);
  if (test.n_gen > 0) absl::StrAppend(&name, name.empty() ? "" : "+", "tg", test.n_gen);
  if (test.depth > 0) absl::StrAppend(&name, " @ d", test.depth);
  return name;
}

std::string BenchHeader(BenchFormat format) {
  switch (format) {
    case BenchFormat::kMarkdown:
      return "| model | mode | budget | threads | test | t/s | p50 ms | p99 ms | flash MB/token | "
             "reads/token | hit % | stall % | limit % |\n"
             "| --- | --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | "
             "---: |\n";
    case BenchFormat::kCsv: {
      BenchRow row;
      row.samples.emplace_back();
      std::vector<std::string> names;
      const Json fields = RowJson(row);
      for (const auto& [name, value] : fields.items()) names.push_back(name);
      return CsvLine(names);
    }
    case BenchFormat::kJson:
    case BenchFormat::kJsonLines:
      return "";
  }
  return "";
}

std::string BenchRowText(BenchFormat format, const BenchRow& row) {
  switch (format) {
    case BenchFormat::kMarkdown:
      return MarkdownRow(row);
    case BenchFormat::kJsonLines:
      return Dump(RowJson(row), -1) + "\n";
    case BenchFormat::kCsv: {
      std::vector<std::string> cells;
      const Json fields = RowJson(row);
      for (const auto& [name, value] : fields.items()) cells.push_back(CsvCell(value));
      return CsvLine(cells);
    }
    case BenchFormat::kJson:
      return "";
  }
  return "";
}

std::string BenchJson(const std::vector<BenchRow>& rows) {
  Json document = Json::array();
  for (const BenchRow& row : rows) document.push_back(RowJson(row));
  return Dump(document, 2) + "\n";
}

}  // namespace sluice
