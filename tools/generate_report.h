// What `sluice generate` says about a plan and a run.
#ifndef SLUICE_TOOLS_GENERATE_REPORT_H_
#define SLUICE_TOOLS_GENERATE_REPORT_H_

#include <span>
#include <string>
#include <vector>

#include "runtime/generation.h"
#include "runtime/memory_plan.h"

namespace sluice {

// A table on stderr, or one JSON document on stdout.
void PrintPlan(const MemoryPlan& plan, bool json);

// A few lines on stderr.
void PrintSummary(const GenerationResult& result, const DecoderStats& stats);

// One JSON document, with a newline at the end.
std::string SummaryJson(const GenerationResult& result, const MemoryPlan& plan,
                        const GenerationRequest& request, const std::vector<std::string>& notes,
                        const std::string& model, const std::string& text);

// VmHWM of this process in bytes; 0 if unknown.
uint64_t PeakRss();

}  // namespace sluice

#endif  // SLUICE_TOOLS_GENERATE_REPORT_H_
