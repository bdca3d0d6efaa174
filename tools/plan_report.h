// What `sluice plan` says.
#ifndef SLUICE_TOOLS_PLAN_REPORT_H_
#define SLUICE_TOOLS_PLAN_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/forecast.h"

namespace sluice {

// What would make tokens faster.
enum class Limit { kCompute, kFlash, kMemory };
const char* LimitName(Limit limit);

struct PlanRow {
  uint64_t budget = 0;
  MemoryPlan plan;
  Forecast forecast;
  Limit limit = Limit::kCompute;
  // Tokens a second if computing, flash or the budget were doubled.
  double if_compute = 0, if_flash = 0, if_memory = 0;
};

struct PlanReport {
  std::string model;
  uint64_t model_bytes = 0;
  std::string device;                 // name of the profile, and where it comes from
  std::string activations;            // where they come from
  std::vector<std::string> measured;  // one sentence for each run that was made
  uint32_t prompt_tokens = 0;
  std::vector<PlanRow> rows;  // in rising budget
};

std::string PlanTable(const PlanReport& report);
std::string PlanJson(const PlanReport& report);  // one document

}  // namespace sluice

#endif  // SLUICE_TOOLS_PLAN_REPORT_H_
