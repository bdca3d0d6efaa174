#include "tools/output_files.h"

#include <algorithm>
#include <filesystem>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/status.h"

namespace sluice {
namespace {

// Also for names of files that do not exist yet.
bool LeadToOneFile(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return false;
  if (SameFile(a, b)) return true;
  std::error_code error_a, error_b;
  const auto full_a = std::filesystem::weakly_canonical(a, error_a);
  const auto full_b = std::filesystem::weakly_canonical(b, error_b);
  return !error_a && !error_b && full_a == full_b;
}

}  // namespace

absl::Status CheckDistinct(const std::vector<NamedFile>& inputs,
                           const std::vector<NamedFile>& outputs) {
  std::vector<NamedFile> taken = inputs;
  for (const NamedFile& output : outputs) {
    for (const NamedFile& other : taken) {
      if (!LeadToOneFile(output.path, other.path)) continue;
      return absl::InvalidArgumentError(absl::StrCat(output.flag, " and ", other.flag,
                                                     " name one file, ", output.path,
                                                     ": give another name"));
    }
    taken.push_back(output);
  }
  return absl::OkStatus();
}

absl::Status OutputFiles::Open(const std::vector<NamedFile>& inputs,
                               const std::vector<NamedFile>& outputs) {
  SLUICE_RETURN_IF_ERROR(CheckDistinct(inputs, outputs));
  AtomicFile::Options options;
  options.overwrite = true;
  for (const NamedFile& output : outputs) {
    if (output.path.empty()) continue;
    auto file = AtomicFile::Create(output.path, options);
    if (!file.ok()) return Annotate(file.status(), output.flag);
    outputs_.push_back({output.flag, *std::move(file)});
  }
  return absl::OkStatus();
}

const OutputFiles::Output* OutputFiles::Find(const std::string& flag) const {
  const auto found = std::find_if(outputs_.begin(), outputs_.end(),
                                  [&](const Output& o) { return o.flag == flag; });
  return found == outputs_.end() ? nullptr : &*found;
}

absl::Status OutputFiles::Write(const std::string& flag, const std::string& text) {
  AtomicFile& file = *Find(flag)->file;
  const absl::Status written = file.WriteAt(0, std::as_bytes(std::span(text)));
  return Annotate(written.ok() ? file.Commit() : written, flag);
}

}  // namespace sluice
