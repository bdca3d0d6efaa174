#include "tools/plan_activations.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "predictor/activation_profile.h"
#include "predictor/packed_file.h"

namespace sluice {
namespace {

absl::StatusOr<PlanActivations> OfProfile(const ActivationProfile& profile, const std::string& path,
                                          const SluiceFile& file, DecodeMode mode) {
  SLUICE_RETURN_IF_ERROR(profile.CheckModel(file, path));
  if (mode == DecodeMode::kPredicted) {
    return absl::FailedPreconditionError(absl::StrCat(
        path,
        ": is a profile of which neurons fire, and predicted mode reads those that are "
        "predicted; give --mode exact, or a trace of generate --record-activations"));
  }
  const bool held_out = profile.held_out().n_tokens() > 0;
  const ActivationTrace& sets = held_out ? profile.held_out() : profile.train();
  if (sets.n_tokens() == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": has no active sets; profile more text, or with a larger --max-mib"));
  }
  return PlanActivations{SetsByPosition(sets, file),
                         absl::StrFormat("%s, %u tokens%s", path, sets.n_tokens(),
                                         held_out ? " of the held-out text" : "")};
}

}  // namespace

absl::StatusOr<PlanActivations> LoadPlanActivations(const std::string& path, const SluiceFile& file,
                                                    DecodeMode mode) {
  auto trace = ActivationTrace::Load(path);
  if (trace.ok()) {
    std::string note = absl::StrFormat("%s, %u tokens", path, trace->n_tokens());
    return PlanActivations{*std::move(trace), std::move(note)};
  }
  if (!absl::IsInvalidArgument(trace.status())) return trace.status();
  const auto profile = ActivationProfile::Load(path);
  if (absl::IsInvalidArgument(profile.status())) {
    return NotOfKind(path, "activation trace or profile");
  }
  if (!profile.ok()) return profile.status();
  return OfProfile(*profile, path, file, mode);
}

}  // namespace sluice
