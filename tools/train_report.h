// What `sluice train` prints.
#ifndef SLUICE_TOOLS_TRAIN_REPORT_H_
#define SLUICE_TOOLS_TRAIN_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "predictor/predictor_checkpoint.h"

namespace sluice {

struct TrainReport {
  std::string out, input;
  std::string what = "neurons";  // that are predicted, or "heads"
  uint32_t d_model = 0, n_outputs = 0;
  uint64_t model_bytes = 0;
  double recall = 0, density_ratio = 0, share = 0;  // the targets
  double seconds = 0;                               // of this run
  std::vector<PredictorCheckpoint> layers;
};

std::string LayerLine(const PredictorCheckpoint& layer);
std::string TrainTable(const TrainReport& report);
std::string TrainJson(const TrainReport& report);

}  // namespace sluice

#endif  // SLUICE_TOOLS_TRAIN_REPORT_H_
