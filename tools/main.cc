// The `sluice` command.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <functional>
#include <new>

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
