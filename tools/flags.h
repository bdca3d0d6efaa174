// What the sub-commands share: how they plug into main, sizes with units, errors on stderr.
#ifndef SLUICE_TOOLS_FLAGS_H_
#define SLUICE_TOOLS_FLAGS_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/stop_signals.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace sluice {

// Exit codes of every sub-command.
constexpr int kExitOk = 0;
constexpr int kExitError = 1;
constexpr int kExitUsage = 2;

// Each adds a sub-command to `app`; when it is chosen, stores what to run in `action`.
void RegisterGenerate(CLI::App& app, std::function<int()>* action);
void RegisterRepack(CLI::App& app, std::function<int()>* action);
void RegisterInspect(CLI::App& app, std::function<int()>* action);
void RegisterVerify(CLI::App& app, std::function<int()>* action);
void RegisterSynth(CLI::App& app, std::function<int()>* action);
void RegisterIobench(CLI::App& app, std::function<int()>* action);
void RegisterPlan(CLI::App& app, std::function<int()>* action);
void RegisterTrain(CLI::App& app, std::function<int()>* action);
void RegisterPerplexity(CLI::App& app, std::function<int()>* action);
void RegisterProfile(CLI::App& app, std::function<int()>* action);
void RegisterSparsify(CLI::App& app, std::function<int()>* action);
void RegisterBench(CLI::App& app, std::function<int()>* action);

// "2G", "512MiB", "1.5GB": a number and a unit, powers of 1024. A number without a unit is refused,
// since tools disagree on what it means.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

// For options that take a text: an empty one is most likely an unset variable of a script.
const CLI::Validator& NotEmpty();

// Prints "sluice: <message>" on stderr; returns the exit code: usage for InvalidArgument that a
// flag caused, else error.
int ReportError(const absl::Status& status);
int ReportUsage(const absl::Status& status);
// Says that a signal ended the writing of `path`; returns the exit code for that.
int ReportStopped(const StopSignals& signals, const std::string& path);

// One progress line on stderr, rewritten in place on a terminal and silent elsewhere.
class ProgressLine {
 public:
  // What is done is counted in `unit`; empty: in bytes.
  explicit ProgressLine(std::string label, std::string unit = "");
  ~ProgressLine();
  void Update(uint64_t done, uint64_t total);

 private:
  std::string Amount(double n) const;

  const std::string label_, unit_;
  const bool terminal_;
  double begin_ = 0, last_ = 0;  // seconds
};

}  // namespace sluice

#endif  // SLUICE_TOOLS_FLAGS_H_
