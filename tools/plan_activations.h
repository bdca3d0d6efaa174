// What `plan --profile` takes: which neurons the tokens of some text need.
#ifndef SLUICE_TOOLS_PLAN_ACTIVATIONS_H_
#define SLUICE_TOOLS_PLAN_ACTIVATIONS_H_

#include <string>

#include "absl/status/statusor.h"
#include "layout/sluice_file.h"
#include "predictor/activation_trace.h"
#include "runtime/memory_plan.h"

namespace sluice {

struct PlanActivations {
  ActivationTrace trace;  // by position in the file
  std::string note;       // where they are from
};

// From a trace of `generate --record-activations`, or from a profile of `sluice profile`: of its
// held-out text if there is any. InvalidArgument for a file of another kind; FailedPrecondition for
// a profile of another model, and for one where `mode` is predicted: it holds what fires, and more
// than that is predicted and read. A trace of another model is found when it is replayed.
absl::StatusOr<PlanActivations> LoadPlanActivations(const std::string& path, const SluiceFile& file,
                                                    DecodeMode mode);

}  // namespace sluice

#endif  // SLUICE_TOOLS_PLAN_ACTIVATIONS_H_
