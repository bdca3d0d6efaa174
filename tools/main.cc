// The `sluice` command.
#include <csignal>
#include <functional>

#include "CLI/CLI.hpp"
#include "tools/flags.h"

int main(int argc, char** argv) {
  // A closed pipe or a file-size limit is an error of the write that meets it, not the end.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);

  CLI::App app(
      "Sluice runs language models that do not fit DRAM: weights stay on flash, and only\n"
      "the neurons that the next token needs are read.");
  app.set_version_flag("--version", "sluice " SLUICE_VERSION);
  app.require_subcommand(1);
  std::function<int()> action;
  sluice::RegisterGenerate(app, &action);
  sluice::RegisterRepack(app, &action);
  sluice::RegisterInspect(app, &action);
  sluice::RegisterVerify(app, &action);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? sluice::kExitOk : sluice::kExitUsage;
  }
  return action();
}
