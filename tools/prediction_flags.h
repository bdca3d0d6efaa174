// The flags of predicted mode: --no-look-ahead, --miss-skip, --predict-heads.
#ifndef SLUICE_TOOLS_PREDICTION_FLAGS_H_
#define SLUICE_TOOLS_PREDICTION_FLAGS_H_

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "runtime/decoder.h"

namespace sluice {

struct PredictionFlags {
  bool no_look_ahead = false;
  double miss_skip = 0;
  bool heads = false;
};
void AddPredictionFlags(CLI::App& cmd, PredictionFlags* flags);

// InvalidArgument, naming the flag, if it is out of range or if nothing is run in predicted mode.
absl::Status CheckPrediction(const PredictionFlags& flags, bool predicts);

void UsePrediction(const PredictionFlags& flags, DecoderOptions* options);

}  // namespace sluice

#endif  // SLUICE_TOOLS_PREDICTION_FLAGS_H_
