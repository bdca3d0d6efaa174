// What `sluice perplexity` says about its runs.
#ifndef SLUICE_TOOLS_PERPLEXITY_REPORT_H_
#define SLUICE_TOOLS_PERPLEXITY_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "predictor/packed_predictor.h"
#include "runtime/memory_plan.h"
#include "runtime/perplexity.h"

namespace sluice {

struct PerplexityRun {
  MemoryPlan plan;
  TextScores scores;
  std::vector<PredictorQuality> layers;       // of the predictors, if they were measured
  std::vector<PredictorQuality> head_layers;  // the same of predictors of heads
};

struct PerplexityReport {
  std::string model, text;  // paths
  uint64_t text_tokens = 0;
  uint32_t window = 0;
  std::vector<PerplexityRun> runs;  // a second one is what the first is held against
};

// Lines of text, for people.
std::string PerplexityTable(const PerplexityReport& report);
// One JSON document.
std::string PerplexityJson(const PerplexityReport& report);

// "12.34 (95 %: 12.01 .. 12.68)", of the windows so far.
std::string PerplexityText(const TextScores& scores);

}  // namespace sluice

#endif  // SLUICE_TOOLS_PERPLEXITY_REPORT_H_
