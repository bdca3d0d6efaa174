#include "tools/iobench_report.h"

#include <algorithm>
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

Json NumberOrNull(const std::optional<double>& value) {
  return value ? Json(*value) : Json(nullptr);
}

std::string Fixed(const std::optional<double>& value, int decimals, const char* without) {
  return value ? absl::StrFormat("%.*f", decimals, *value) : without;
}

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
  const CellFigures f = FiguresOf(c);
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
            {"cached_share", c.load.cached_share},
            {"hole_share", c.load.hole_share},
            {"late_share", c.load.late_share}}},
          {"mb_per_s",
           {{"median", NumberOrNull(f.rate)},
            {"p5", NumberOrNull(f.rate_p5)},
            {"p95", NumberOrNull(f.rate_p95)}}},
          {"iops",
           {{"median", NumberOrNull(f.iops)},
            {"p5", NumberOrNull(f.iops_p5)},
            {"p95", NumberOrNull(f.iops_p95)}}},
          {"samples_mb_per_s", std::move(samples)},
          {"seconds", seconds},
          {"operations", c.latency().count()},
          {"latency_us",
           {{"p50", NumberOrNull(f.p50)},
            {"p95", NumberOrNull(f.p95)},
            {"p99", NumberOrNull(f.p99)},
            {"max", NumberOrNull(f.max)}}},
          {"cpu_us_per_operation", NumberOrNull(f.cpu)},
          {"before", StateJson(c.before)},
          {"after", StateJson(c.after)},
          {"gate", {{"waited_s", c.waited_s}, {"gave_up", c.gate_gave_up}}},
          {"reads_cache", c.reads_cache()},
          {"reads_holes", c.reads_holes()},
          {"remarks", Remarks(c)}};
}

Json EffectJson(const AxisEffect& e) {
  return {{"axis", e.axis},
          {"from", e.from},
          {"to", e.to},
          {"ratio", e.ratio},
          {"low", e.low},
          {"high", e.high},
          {"pairs", e.n_pairs},
          {"interval_over", e.over_windows ? "windows" : "pairs"},
          {"verdict", EffectVerdictName(e.verdict)}};
}

// RFC 4180.
void AppendCsvField(std::string* out, const std::string& text) {
  if (text.find_first_of(",\"\n") == std::string::npos) {
    *out += text;
    return;
  }
  *out += '"';
  for (const char c : text) *out += c == '"' ? std::string("\"\"") : std::string(1, c);
  *out += '"';
}

}  // namespace

std::string EffectBasis(const AxisEffect& effect) {
  if (!effect.over_windows) return absl::StrCat(effect.n_pairs, " pairs of cells");
  return absl::StrFormat("the windows of %u pair%s of cells (%u pairs say more)", effect.n_pairs,
                         effect.n_pairs == 1 ? "" : "s", kLeastPairs);
}

CellFigures FiguresOf(const CellResult& cell) {
  CellFigures f;
  if (cell.load.windows.empty()) return f;
  const Spread rate = cell.megabytes_per_second(), iops = cell.operations_per_second();
  f.rate = rate.median;
  f.rate_p5 = rate.p5;
  f.rate_p95 = rate.p95;
  f.iops = iops.median;
  f.iops_p5 = iops.p5;
  f.iops_p95 = iops.p95;
  const LatencyHistogram latency = cell.latency();
  if (latency.count() == 0) return f;
  f.p50 = Us(latency.Percentile(0.5));
  f.p95 = Us(latency.Percentile(0.95));
  f.p99 = Us(latency.Percentile(0.99));
  f.max = Us(latency.max_ns());
  f.cpu = cell.cpu_us_per_operation();
  return f;
}

std::vector<std::string> Remarks(const CellResult& c) {
  std::vector<std::string> remarks;
  if (c.spec.emulated != nullptr) {
    remarks.push_back(absl::StrCat("EMULATED: ", c.spec.emulated->name()));
  }
  if (c.load.late_share > 0.01) {
    remarks.push_back(absl::StrFormat(
        "NOT THE MODEL'S: %.0f %% of the reads came from the real device later than the model "
        "says%s",
        100 * c.load.late_share, c.load.direct ? "; give --direct 0" : ""));
  }
  if (c.spec.engine == LoadEngine::kMmap) {
    remarks.push_back("mmap reads through the page cache, one page fault after another");
  } else if (c.spec.direct && !c.load.direct) {
    remarks.push_back("not direct: " + c.load.direct_note);
  }
  if (c.reads_cache()) {
    remarks.push_back(absl::StrFormat("READS THE CACHE: %.0f %% of the range was in it",
                                      100 * c.load.cached_share));
  }
  if (c.reads_holes()) {
    remarks.push_back(absl::StrFormat("READS HOLES: %.0f %% of the range is on no device",
                                      100 * c.load.hole_share));
  }
  if (c.load.windows.empty()) {
    remarks.push_back("no figures: the warm-up read every block of the range");
  } else if (c.load.ran_out) {
    remarks.push_back("every block of the range was read: windows are shorter or fewer");
  }
  const uint64_t n_in_flight = c.spec.engine == LoadEngine::kMmap
                                   ? 1
                                   : uint64_t{c.spec.depth} * static_cast<uint64_t>(c.spec.n_jobs);
  if (std::any_of(c.load.windows.begin(), c.load.windows.end(),
                  [&](const LoadWindow& w) { return w.operations < n_in_flight; })) {
    remarks.push_back(
        "a repeat had fewer reads than are in flight: give a longer --runtime or a larger --size");
  }
  if (c.spec.core >= 0 && !c.load.pinned) remarks.push_back(c.load.affinity_note);
  if (c.gate_gave_up) remarks.push_back("the machine had not come back to its state at entry");
  return remarks;
}

std::string IobenchTable(const IobenchReport& report) {
  std::string out = absl::StrFormat(
      "%s: %s, %s on %s; %s\n", report.file, ShortSize(report.file_bytes),
      report.file_system.type.empty() ? "unknown file system" : report.file_system.type,
      report.file_system.source, report.kernel);
  absl::StrAppendFormat(&out, "%-9s %-8s %-6s %6s %6s %5s %4s %4s %9s %17s %9s %8s %8s %8s %7s\n",
                        "rw", "ioengine", "direct", "bs", "size", "depth", "jobs", "cpu", "MB/s",
                        "p5-p95", "IOPS", "p50 us", "p99 us", "max us", "cpu us");
  for (const CellResult& c : report.cells) {
    const CellFigures f = FiguresOf(c);
    absl::StrAppendFormat(
        &out, "%-9s %-8s %-6s %6s %6s %5d %4d %4s %9s %17s %9s %8s %8s %8s %7s\n", PatternName(c),
        LoadEngineName(c.spec.engine), c.load.direct ? "yes" : "no", ShortSize(c.spec.block),
        ShortSize(c.spec.range), c.spec.depth, c.spec.n_jobs,
        c.spec.core < 0 ? "any" : absl::StrCat(c.spec.core), Fixed(f.rate, 1, "-"),
        f.rate ? absl::StrFormat("%.1f-%.1f", *f.rate_p5, *f.rate_p95) : "-", Fixed(f.iops, 0, "-"),
        Fixed(f.p50, 1, "-"), Fixed(f.p99, 1, "-"), Fixed(f.max, 1, "-"), Fixed(f.cpu, 2, "-"));
    for (const std::string& remark : Remarks(c)) absl::StrAppend(&out, "    ^ ", remark, "\n");
  }
  if (report.ended) {
    absl::StrAppendFormat(&out, "ended early, after %u of %u cells: %s\n", report.cells.size(),
                          report.n_planned, *report.ended);
  }
  for (const AxisEffect& e : report.effects) {
    absl::StrAppendFormat(&out, "%s %s -> %s: x%.3f [%.3f, %.3f] over %s, %s\n", e.axis, e.from,
                          e.to, e.ratio, e.low, e.high, EffectBasis(e),
                          EffectVerdictName(e.verdict));
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
                         {"cells_planned", report.n_planned},
                         {"ended_early", report.ended ? Json(*report.ended) : Json(nullptr)},
                         {"cells", std::move(cells)},
                         {"effects", std::move(effects)}};
  return document.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string IobenchCsv(const IobenchReport& report) {
  std::string out =
      "rw,ioengine,engine_effective,direct,direct_effective,bs,size,iodepth,numjobs,cpu,"
      "cpu_granted,mb_per_s,mb_per_s_p5,mb_per_s_p95,iops,iops_p5,iops_p95,latency_p50_us,"
      "latency_p95_us,latency_p99_us,latency_max_us,cpu_us_per_operation,temperature_c,"
      "frequency_mhz,mem_available,reads_cache,remarks,file_system,mount_options,kernel\n";
  for (const CellResult& c : report.cells) {
    const LoadSpec& s = c.spec;
    const CellFigures f = FiguresOf(c);
    const SystemState& now = c.after;
    const std::vector<std::string> fields = {
        PatternName(c),
        std::string(LoadEngineName(s.engine)),
        c.load.engine_note,
        absl::StrCat(s.direct),
        absl::StrCat(c.load.direct),
        absl::StrCat(s.block),
        absl::StrCat(s.range),
        absl::StrCat(s.depth),
        absl::StrCat(s.n_jobs),
        s.core < 0 ? "" : absl::StrCat(s.core),
        s.core < 0 ? "" : absl::StrCat(c.load.pinned),
        Fixed(f.rate, 3, ""),
        Fixed(f.rate_p5, 3, ""),
        Fixed(f.rate_p95, 3, ""),
        Fixed(f.iops, 1, ""),
        Fixed(f.iops_p5, 1, ""),
        Fixed(f.iops_p95, 1, ""),
        Fixed(f.p50, 2, ""),
        Fixed(f.p95, 2, ""),
        Fixed(f.p99, 2, ""),
        Fixed(f.max, 2, ""),
        Fixed(f.cpu, 3, ""),
        now.temperature_c ? absl::StrFormat("%.1f", *now.temperature_c) : "",
        now.frequency_mhz ? absl::StrCat(*now.frequency_mhz) : "",
        now.available_memory > 0 ? absl::StrCat(now.available_memory) : "",
        absl::StrCat(c.reads_cache()),
        absl::StrJoin(Remarks(c), "; "),
        report.file_system.type,
        report.file_system.options,
        report.kernel};
    absl::StrAppend(&out, absl::StrJoin(fields, ",", AppendCsvField), "\n");
  }
  return out;
}

}  // namespace sluice
