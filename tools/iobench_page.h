// The report of `sluice iobench` as one HTML page that needs nothing else: curves, the table, and
// the JSON document that both were made from. No script runs in it.
#ifndef SLUICE_TOOLS_IOBENCH_PAGE_H_
#define SLUICE_TOOLS_IOBENCH_PAGE_H_

#include <string>

#include "tools/iobench_report.h"

namespace sluice {

std::string IobenchPage(const IobenchReport& report);

}  // namespace sluice

#endif  // SLUICE_TOOLS_IOBENCH_PAGE_H_
