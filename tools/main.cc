// The `sluice` command.
#include <fcntl.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <functional>
#include <new>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "tools/flags.h"

namespace {

// Descriptors 0 to 2 that the caller closed must not be given to a file that is opened next: error
// messages would end up in it. What fills them fails when it is used, as a closed one does.
void OccupyStandardDescriptors() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    // The lowest free descriptor is `fd`, since those before it are taken.
    static_cast<void>(open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY));
  }
}

// The parser would take "-ngl" of llama.cpp for -n with the value "gl". Short flags have one
// letter, and their value follows after a space, or is a number. Empty if all is well.
std::string MistakenFlag(const CLI::App& app, int argc, char** argv) {
  const auto commands =
      app.get_subcommands([&](const CLI::App* c) { return c->check_name(argv[1]); });
  if (commands.empty()) return "";
  for (int i = 2; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--") break;
    const CLI::Option* option = commands[0]->get_option_no_throw(argument);
    if (option != nullptr) {
      i += option->get_expected_min();  // its value, whatever that looks like
    } else if (argument.size() > 2 && argument[0] == '-' && std::isalpha(argument[1]) != 0 &&
               std::isalpha(argument[2]) != 0) {
      return argument;
    }
  }
  return "";
}

// A report that could not be written must not look like success.
int FlushStdout(int exit_code) {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return exit_code;
  const int error = errno;
  sluice::ReportError(sluice::ErrnoStatus(error != 0 ? error : EIO, "stdout"));
  return exit_code == sluice::kExitOk ? sluice::kExitError : exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  OccupyStandardDescriptors();
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
  sluice::RegisterSynth(app, &action);
  sluice::RegisterVerify(app, &action);
  sluice::RegisterIobench(app, &action);
  sluice::RegisterPlan(app, &action);
  sluice::RegisterTrain(app, &action);
  sluice::RegisterPerplexity(app, &action);
  sluice::RegisterProfile(app, &action);
  sluice::RegisterSparsify(app, &action);
  sluice::RegisterBench(app, &action);
  if (argc > 1) {
    const std::string mistaken = MistakenFlag(app, argc, argv);
    if (!mistaken.empty()) {
      return sluice::ReportUsage(absl::InvalidArgumentError(absl::StrFormat(
          "there is no flag %s; sluice %s --help lists the known ones", mistaken, argv[1])));
    }
  }
  app.failure_message([](const CLI::App* failed, const CLI::Error& error) {
    const auto chosen = failed->get_subcommands();
    return absl::StrFormat("sluice: %s; sluice%s --help says more\n", error.what(),
                           chosen.empty() ? "" : " " + chosen[0]->get_name());
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    const auto is_named = [&](const CLI::App* c) { return c->check_name(argv[1]); };
    if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(is_named).empty()) {
      return sluice::ReportUsage(absl::InvalidArgumentError(
          absl::StrFormat("unknown command \"%s\"; sluice --help lists the known ones", argv[1])));
    }
    return FlushStdout(app.exit(e) == 0 ? sluice::kExitOk : sluice::kExitUsage);
  }
  try {
    return FlushStdout(action());
  } catch (const std::bad_alloc&) {
    return sluice::ReportError(absl::ResourceExhaustedError(
        "the system gave no more memory; give a smaller --mem-budget or end other programs"));
  }
}
