// What `sluice generate` says about a plan and a run.
#ifndef SLUICE_TOOLS_GENERATE_REPORT_H_
#define SLUICE_TOOLS_GENERATE_REPORT_H_

#include <cstdint>
#include <string>

#include "runtime/generation.h"
#include "runtime/memory_plan.h"

namespace sluice {

// A table or one JSON document on stdout.
void PrintPlan(const MemoryPlan& plan, bool json);

// A run; borrowed references.
struct RunReport {
  const GenerationRequest& request;
  const GenerationResult& result;
  const Decoder& decoder;
  const MemoryPlan& plan;
  uint64_t load_ns = 0;  // opening the decoder, which reads the resident weights
};

// A few lines on stderr.
void PrintSummary(const RunReport& run);

// One JSON document, with a newline at the end.
std::string SummaryJson(const RunReport& run, const std::string& model, const std::string& text);

// VmHWM of this process in bytes; 0 if unknown.
uint64_t PeakRss();

}  // namespace sluice

#endif  // SLUICE_TOOLS_GENERATE_REPORT_H_
