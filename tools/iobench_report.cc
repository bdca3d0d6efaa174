#include "tools/iobench_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/status.h"
#include "io/suite/axes.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

const char* PatternName(const CellResult& c) { return c.spec.random ? "randread" : "read"; }

double Us(uint64_t ns) { return static_cast<double>(ns) / 1e3; }

// What makes a figure less than it seems, in words.
std::vector<std::string> Remarks(const CellResult& c) {
  std::vector<std::string> remarks;
  if (c.spec.direct && !c.load.direct && c.spec.engine != LoadEngine::kMmap) {
    remarks.push_back("not direct: " + c.load.direct_note);
  }
  if (c.reads_cache()) {
    remarks.push_back(absl::StrFormat("READS THE CACHE: %.0f %% of the range was in it",
                                      100 * c.load.cached_share));
  }
  if (c.load.ran_out)
    remarks.push_back("every block of the range was read: windows are shorter or fewer");
  if (c.spec.core >= 0 && !c.load.pinned) remarks.push_back(c.load.affinity_note);
  if (c.gate_gave_up) remarks.push_back("the machine had not come back to its state at entry");
  return remarks;
}

Json SpreadJson(const Spread& s) { return {{"median", s.median}, {"p5", s.p5}, {"p95", s.p95}}; }

Json StateJson(const SystemState& s) {
  Json json = Json::object();
  json["frequency_mhz"] = s.frequency_mhz ? Json(*s.frequency_mhz) : Json(nullptr);
  json["temperature_c"] = s.temperature_c ? Json(*s.temperature_c) : Json(nullptr);
  json["available_memory_bytes"] =
      s.available_memory > 0 ? Json(s.available_memory) : Json(nullptr);
  return json;
}

Json CellJson(const CellResult& c) {
  const LoadSpec& s = c.spec;
  const LatencyHistogram latency = c.latency();
  Json samples = Json::array();
  double seconds = 0;
  for (const LoadWindow& w : c.load.windows) {
    samples.push_back(c.megabytes_per_second(w));
    seconds += static_cast<double>(w.ns) / 1e9;
  }
  return {{"rw", PatternName(c)},
          {"bs", s.block},
          {"size", s.range},
          {"offset", s.offset},
          {"iodepth", s.depth},
          {"numjobs", s.n_jobs},
          {"ioengine", LoadEngineName(s.engine)},
          {"direct", s.direct},
          {"cpu", s.core >= 0 ? Json(s.core) : Json(nullptr)},
          {"effective",
           {{"engine", c.load.engine_note},
            {"direct", c.load.direct},
            {"direct_note", c.load.direct_note},
            {"cpu", s.core >= 0 ? Json(c.load.affinity_note) : Json(nullptr)},
            {"cached_share", c.load.cached_share}}},
          {"mb_per_s", SpreadJson(c.megabytes_per_second())},
          {"iops", SpreadJson(c.operations_per_second())},
          {"samples_mb_per_s", std::move(samples)},
          {"seconds", seconds},
          {"operations", latency.count()},
          {"latency_us",
           {{"p50", Us(latency.Percentile(0.5))},
            {"p95", Us(latency.Percentile(0.95))},
            {"p99", Us(latency.Percentile(0.99))},
            {"max", Us(latency.max_ns())}}},
          {"cpu_us_per_operation", c.cpu_us_per_operation()},
          {"before", StateJson(c.before)},
          {"after", StateJson(c.after)},
          {"gate", {{"waited_s", c.waited_s}, {"gave_up", c.gate_gave_up}}},
          {"reads_cache", c.reads_cache()},
          {"remarks", Remarks(c)}};
}

Json EffectJson(const AxisEffect& e) {
  return {{"axis", e.axis},     {"from", e.from},
          {"to", e.to},         {"ratio", e.ratio},
          {"low", e.low},       {"high", e.high},
          {"pairs", e.n_pairs}, {"verdict", EffectVerdictName(e.verdict)}};
}

// RFC 4180.
std::string CsvField(const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

}  // namespace

std::string IobenchTable(const IobenchReport& report) {
  std::string out = absl::StrFormat(
      "%s: %s, %s on %s; %s\n", report.file, FormatSize(report.file_bytes),
      report.file_system.type.empty() ? "unknown file system" : report.file_system.type,
      report.file_system.source, report.kernel);
  absl::StrAppendFormat(&out, "%-9s %-8s %-6s %6s %6s %5s %4s %4s %9s %17s %9s %8s %8s %8s %7s\n",
                        "rw", "ioengine", "direct", "bs", "size", "depth", "jobs", "cpu", "MB/s",
                        "p5-p95", "IOPS", "p50 us", "p99 us", "max us", "cpu us");
  for (const CellResult& c : report.cells) {
    const Spread rate = c.megabytes_per_second();
    const LatencyHistogram latency = c.latency();
    absl::StrAppendFormat(
        &out, "%-9s %-8s %-6s %6s %6s %5d %4d %4s %9.1f %17s %9.0f %8.1f %8.1f %8.1f %7.2f\n",
        PatternName(c), LoadEngineName(c.spec.engine), c.load.direct ? "yes" : "no",
        FormatSize(c.spec.block), FormatSize(c.spec.range), c.spec.depth, c.spec.n_jobs,
        c.spec.core < 0 ? "any" : absl::StrCat(c.spec.core), rate.median,
        absl::StrFormat("%.1f-%.1f", rate.p5, rate.p95), c.operations_per_second().median,
        Us(latency.Percentile(0.5)), Us(latency.Percentile(0.99)), Us(latency.max_ns()),
        c.cpu_us_per_operation());
    for (const std::string& remark : Remarks(c)) absl::StrAppend(&out, "    ^ ", remark, "\n");
  }
  for (const AxisEffect& e : report.effects) {
    absl::StrAppendFormat(&out, "%s %s -> %s: x%.3f [%.3f, %.3f], %s\n", e.axis, e.from, e.to,
                          e.ratio, e.low, e.high, EffectVerdictName(e.verdict));
  }
  return out;
}

std::string IobenchJson(const IobenchReport& report) {
  Json cells = Json::array(), effects = Json::array();
  for (const CellResult& c : report.cells) cells.push_back(CellJson(c));
  for (const AxisEffect& e : report.effects) effects.push_back(EffectJson(e));
  const Json document = {{"version", SLUICE_VERSION},
                         {"file", report.file},
                         {"file_bytes", report.file_bytes},
                         {"file_system",
                          {{"type", report.file_system.type},
                           {"source", report.file_system.source},
                           {"options", report.file_system.options}}},
                         {"kernel", report.kernel},
                         {"cells", std::move(cells)},
                         {"effects", std::move(effects)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string IobenchCsv(const IobenchReport& report) {
  std::string out =
      "rw,ioengine,direct,direct_effective,bs,size,iodepth,numjobs,cpu,mb_per_s,mb_per_s_p5,"
      "mb_per_s_p95,iops,latency_p50_us,latency_p95_us,latency_p99_us,latency_max_us,"
      "cpu_us_per_operation,temperature_c,frequency_mhz,reads_cache,remarks\n";
  for (const CellResult& c : report.cells) {
    const LoadSpec& s = c.spec;
    const Spread rate = c.megabytes_per_second();
    const LatencyHistogram latency = c.latency();
    const SystemState& now = c.after;
    absl::StrAppendFormat(&out, "%s,%s,%d,%d,%u,%u,%u,%d,%s,%.3f,%.3f,%.3f,%.1f,", PatternName(c),
                          LoadEngineName(s.engine), s.direct, c.load.direct, s.block, s.range,
                          s.depth, s.n_jobs, s.core < 0 ? "" : absl::StrCat(s.core), rate.median,
                          rate.p5, rate.p95, c.operations_per_second().median);
    absl::StrAppendFormat(&out, "%.2f,%.2f,%.2f,%.2f,%.3f,%s,%s,%d,%s\n",
                          Us(latency.Percentile(0.5)), Us(latency.Percentile(0.95)),
                          Us(latency.Percentile(0.99)), Us(latency.max_ns()),
                          c.cpu_us_per_operation(),
                          now.temperature_c ? absl::StrFormat("%.1f", *now.temperature_c) : "",
                          now.frequency_mhz ? absl::StrCat(*now.frequency_mhz) : "",
                          c.reads_cache(), CsvField(absl::StrJoin(Remarks(c), "; ")));
  }
  return out;
}

}  // namespace sluice
