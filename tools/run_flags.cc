#include "tools/run_flags.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "io/available_memory.h"
#include "io/cpu_topology.h"
#include "io/status.h"

namespace sluice {
namespace {

constexpr uint32_t kMaxDefaultContext = 4096;  // a trained length of 128k would take all memory

}  // namespace

absl::Status InRange(const char* flag, int64_t v, int64_t min, int64_t max) {
  if (v >= min && v <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %d; it must be in %d..%d", flag, v, min, max));
}

absl::StatusOr<uint32_t> ChooseContext(const ModelConfig& config, int64_t wanted) {
  if (wanted < 0) return std::min(config.context_length, kMaxDefaultContext);
  const uint32_t context = wanted > 0 ? static_cast<uint32_t>(wanted) : config.context_length;
  if (config.attention_window > 0 && context > config.attention_window) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "-c is %u, but the model attends to a window of %u tokens only, which is not supported "
        "beyond its first window; give -c %u or less",
        context, config.attention_window, config.attention_window));
  }
  if (config.learned_positions && context > config.context_length) {
    return absl::InvalidArgumentError(
        absl::StrFormat("-c is %u, but the model has learned %u positions and no more; give -c %u "
                        "or less",
                        context, config.context_length, config.context_length));
  }
  if (context > config.context_length) {
    absl::FPrintF(stderr,
                  "sluice: -c is %u and the model was trained with %u: beyond that its text is "
                  "likely to be poor\n",
                  context, config.context_length);
  }
  return context;
}

absl::StatusOr<int> ChooseThreads(int64_t wanted) {
  SLUICE_RETURN_IF_ERROR(InRange("-t", wanted, -1, 256));
  if (wanted == 0) {
    return absl::InvalidArgumentError("-t is 0; give at least 1 thread, or -1 for one a core");
  }
  return static_cast<int>(wanted > 0 ? wanted : std::max<int64_t>(std::ssize(AllowedCores()), 1));
}

absl::StatusOr<DecodeMode> ChooseMode(const char* flag, const std::string& text,
                                      const SluiceFile& file) {
  if (text == "dense") return DecodeMode::kDense;
  if (text == "exact") return DecodeMode::kExact;
  if (text == "predicted") return DecodeMode::kPredicted;
  if (text == "auto") {
    // Where nothing is exactly zero, predictors lose more than thresholds do and, since half of the
    // neurons are active, choose most of them: they are used there on request only.
    const bool predicts = file.predictor() != nullptr && file.config().sparse();
    return predicts ? DecodeMode::kPredicted : DecodeMode::kExact;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is \"%s\"; known are auto, dense, exact, predicted", flag, text));
}

absl::StatusOr<MemoryPlan> PlanRun(const SluiceFile& file, PlanRequest request) {
  auto plan = PlanMemory(file, request);
  const uint64_t available = AvailableMemory() / 4 * 3;
  if (plan.ok() && request.budget == UINT64_MAX && available > 0 && plan->total > available) {
    absl::FPrintF(
        stderr,
        "sluice: no --mem-budget given and the model needs %s; using %s, three quarters of "
        "what is available\n",
        FormatBytes(plan->total), FormatBytes(available));
    request.budget = available;
    plan = PlanMemory(file, request);
  }
  return plan;
}

absl::StatusOr<DirectMode> ParseDirect(const std::string& text) {
  if (text == "auto") return DirectMode::kAuto;
  if (text == "on") return DirectMode::kOn;
  if (text == "off") return DirectMode::kOff;
  return absl::InvalidArgumentError(
      absl::StrFormat("--direct is \"%s\"; known are auto, on, off", text));
}

}  // namespace sluice
