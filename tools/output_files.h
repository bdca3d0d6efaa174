// The files that a long run writes its results to at its end.
#ifndef SLUICE_TOOLS_OUTPUT_FILES_H_
#define SLUICE_TOOLS_OUTPUT_FILES_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "io/atomic_file.h"

namespace sluice {

// A file by the flag that names it. An empty path: the flag was not given.
struct NamedFile {
  std::string flag, path;
};

// InvalidArgument if an output is one of `inputs` or another output, whatever links are between.
absl::Status CheckDistinct(const std::vector<NamedFile>& inputs,
                           const std::vector<NamedFile>& outputs);

// Opens every output before the run begins, so that a name that cannot be written, or one that
// would replace what is read, is not found out an hour later. Thread-compatible.
class OutputFiles {
 public:
  // After CheckDistinct.
  absl::Status Open(const std::vector<NamedFile>& inputs, const std::vector<NamedFile>& outputs);

  bool has(const std::string& flag) const { return Find(flag) != nullptr; }
  // For those who write a file themselves; the flag was given.
  AtomicFile& file(const std::string& flag) { return *Find(flag)->file; }
  // Writes a file whole and puts it in place of what was there. `flag` is one that was given. Those
  // that are never written leave what was there as it was.
  absl::Status Write(const std::string& flag, const std::string& text);

 private:
  struct Output {
    std::string flag;
    std::unique_ptr<AtomicFile> file;
  };
  const Output* Find(const std::string& flag) const;

  std::vector<Output> outputs_;
};

}  // namespace sluice

#endif  // SLUICE_TOOLS_OUTPUT_FILES_H_
