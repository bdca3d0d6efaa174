// What `sluice iobench` says about a run: a table, one JSON document, CSV, a page.
#ifndef SLUICE_TOOLS_IOBENCH_REPORT_H_
#define SLUICE_TOOLS_IOBENCH_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "io/suite/effects.h"
#include "io/suite/suite.h"
#include "io/suite/system_state.h"

namespace sluice {

struct IobenchReport {
  std::string file;
  uint64_t file_bytes = 0;
  FileSystemInfo file_system;
  std::string kernel;
  size_t n_planned = 0;              // cells
  std::optional<std::string> ended;  // why there are fewer cells than that
  std::vector<CellResult> cells;
  std::vector<AxisEffect> effects;
};

// The figures of a cell in the units in which every form shows them. Nothing where too little was
// read for one: 0 would be a claim.
struct CellFigures {
  std::optional<double> rate, rate_p5, rate_p95;  // MB/s
  std::optional<double> iops, iops_p5, iops_p95;
  std::optional<double> p50, p95, p99, max;  // latency, us
  std::optional<double> cpu;                 // us per read
};
CellFigures FiguresOf(const CellResult& cell);

// What makes a figure less than it seems, in words.
std::vector<std::string> Remarks(const CellResult& cell);

// What an effect's interval is over, in words.
std::string EffectBasis(const AxisEffect& effect);

std::string IobenchTable(const IobenchReport& report);
std::string IobenchJson(const IobenchReport& report);
std::string IobenchCsv(const IobenchReport& report);

}  // namespace sluice

#endif  // SLUICE_TOOLS_IOBENCH_REPORT_H_
