#include "tools/prediction_flags.h"

#include "absl/strings/str_format.h"

namespace sluice {

void AddPredictionFlags(CLI::App& cmd, PredictionFlags* flags) {
  cmd.add_flag("--no-look-ahead", flags->no_look_ahead,
               "Predicted mode: do not read for the next layer while this one is computed");
  cmd.add_option(
         "--miss-skip", flags->miss_skip,
         "Predicted mode: share of the neurons that would have to be read that are left out "
         "instead, those with the lowest scores; 0..0.95. Costs quality, and makes the text "
         "depend on what is cached")
      ->capture_default_str();
  cmd.add_flag(
      "--predict-heads", flags->heads,
      "Predicted mode: also leave out attention heads, by the predictors that sluice train "
      "--heads makes. Costs quality, and memory for the inputs of what is left out");
}

absl::Status CheckPrediction(const PredictionFlags& flags, bool predicts) {
  if (!(flags.miss_skip >= 0 && flags.miss_skip <= 0.95)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--miss-skip is %g; it must be in 0..0.95", flags.miss_skip));
  }
  if (predicts) return absl::OkStatus();
  const char* flag = nullptr;
  if (flags.no_look_ahead) flag = "--no-look-ahead";
  if (flags.miss_skip > 0) flag = "--miss-skip";
  if (flags.heads) flag = "--predict-heads";
  if (flag == nullptr) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s is about predicted mode; give --mode predicted and a model that has predictors", flag));
}

void UsePrediction(const PredictionFlags& flags, DecoderOptions* options) {
  options->look_ahead = !flags.no_look_ahead;
  options->miss_skip = flags.miss_skip;
}

}  // namespace sluice
