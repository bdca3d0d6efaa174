// What `sluice iobench` says about a run: a table, one JSON document, CSV, a page.
#ifndef SLUICE_TOOLS_IOBENCH_REPORT_H_
#define SLUICE_TOOLS_IOBENCH_REPORT_H_

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
  std::vector<CellResult> cells;
  std::vector<AxisEffect> effects;
};

std::string IobenchTable(const IobenchReport& report);
std::string IobenchJson(const IobenchReport& report);
std::string IobenchCsv(const IobenchReport& report);

}  // namespace sluice

#endif  // SLUICE_TOOLS_IOBENCH_REPORT_H_
