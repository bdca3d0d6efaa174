#include <cstdio>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "io/status.h"
#include "layout/verify.h"
#include "tools/flags.h"

namespace sluice {
namespace {

int RunVerify(const std::string& path) {
  absl::StatusOr<VerifyReport> report;
  {
    ProgressLine line("verify");
    report = Verify(path, [&](uint64_t done, uint64_t total) { line.Update(done, total); });
  }
  if (!report.ok()) return ReportError(report.status());
  for (const std::string& finding : report->findings) {
    absl::FPrintF(stderr, "sluice: %s: %s does not match its checksum\n", path, finding);
  }
  absl::PrintF("%s: %u matrix tiles and %u bundles checked, %u damaged%s\n", path, report->tiles,
               report->bundles, report->damaged,
               report->damaged > 0 ? "; copy or repack the file again" : "");
  return report->damaged == 0 ? kExitOk : kExitError;
}

}  // namespace

void RegisterVerify(CLI::App& app, std::function<int()>* action) {
  auto path = std::make_shared<std::string>();
  CLI::App* cmd =
      app.add_subcommand("verify", "Check every checksum of a .sluice file (padding has none)");
  cmd->add_option("FILE", *path, "The .sluice file")->required()->check(NotEmpty());
  cmd->callback([=] { *action = [=] { return RunVerify(*path); }; });
}

}  // namespace sluice
