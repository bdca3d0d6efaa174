// What `sluice bench` says: a Markdown table, JSON, JSON lines or CSV. Fields that llama-bench has
// too keep its names.
#ifndef SLUICE_TOOLS_BENCH_REPORT_H_
#define SLUICE_TOOLS_BENCH_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/benchmark.h"
#include "runtime/memory_plan.h"

namespace sluice {

// A test with one model, mode, budget and number of threads.
struct BenchRow {
  std::string model;
  uint64_t model_bytes = 0;
  std::string budget;  // as it was asked for: "all", "50%", "2G"
  MemoryPlan plan;
  BenchTest test;
  std::vector<BenchSample> samples;  // at least one
  bool cold = false;                 // each repetition began with an empty cache
  uint64_t load_ns = 0;              // the last one, if there were several
  // Bytes a second: what DRAM gives to so many threads, and what the device gives to reads of the
  // mean size of those that the test made, if it made any.
  double memory_bandwidth = 0;
  std::optional<double> disk_bandwidth;
  uint32_t disk_block = 0;         // the size that was measured, bytes
  std::vector<std::string> notes;  // paths taken, see Decoder::Notes
};

// In the units in which every form shows them. Nothing where there was nothing to count.
struct BenchFigures {
  double avg_ts = 0, stddev_ts = 0, median_ts = 0;  // tokens a second
  double compute_share = 0, stall_share = 0;        // of the time; they add up to 1
  double flash_bytes = 0, flash_operations = 0;     // of a token
  double touched_bytes = 0;                         // of a token
  std::optional<double> hit_rate, active_share;
  std::optional<double> p50_ms, p95_ms, p99_ms;  // between tokens
  std::optional<double> limit_ts, of_limit;      // of decoding, see LeastNs
};
BenchFigures FiguresOf(const BenchRow& row);

// "pp512", "tg128", "tg128 @ d1024".
std::string BenchTestName(const BenchTest& test);

enum class BenchFormat { kMarkdown, kJson, kJsonLines, kCsv };

// Rows are written one after another, as they come: all that stands between them, before the first
// and after the last included. JSON is a single document, so its rows come with the last.
std::string BenchHeader(BenchFormat format);
std::string BenchRowText(BenchFormat format, const BenchRow& row);
std::string BenchJson(const std::vector<BenchRow>& rows);

}  // namespace sluice

#endif  // SLUICE_TOOLS_BENCH_REPORT_H_
