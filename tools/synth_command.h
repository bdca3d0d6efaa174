// `sluice synth`: writes a generated model and says what it measured on it.
#ifndef SLUICE_TOOLS_SYNTH_COMMAND_H_
#define SLUICE_TOOLS_SYNTH_COMMAND_H_

#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace sluice {

// Adds the subcommand to `app`. When it is chosen on the command line, parsing sets `run`.
void AddSynthCommand(CLI::App& app, std::function<absl::Status()>& run);

}  // namespace sluice

#endif  // SLUICE_TOOLS_SYNTH_COMMAND_H_
