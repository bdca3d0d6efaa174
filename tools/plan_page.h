// The report of `sluice plan` as an HTML page: speed, traffic and hit rate over the budget.
#ifndef SLUICE_TOOLS_PLAN_PAGE_H_
#define SLUICE_TOOLS_PLAN_PAGE_H_

#include <string>

#include "tools/plan_report.h"

namespace sluice {

std::string PlanPage(const PlanReport& report);

}  // namespace sluice

#endif  // SLUICE_TOOLS_PLAN_PAGE_H_
