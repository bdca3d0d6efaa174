// Where tests find the shared material (models, vocabularies, texts) and where they write.
#ifndef SLUICE_TESTS_TEST_PATHS_H_
#define SLUICE_TESTS_TEST_PATHS_H_

#include <stdlib.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>

namespace sluice {

// The path of `relative` in the shared folder: $SLUICE_SHARED, else ../shared beside the sources.
// Nothing if it is not there; the test then skips and says so.
inline std::optional<std::string> SharedPath(std::string_view relative) {
  const char* shared = std::getenv("SLUICE_SHARED");
  const std::filesystem::path root =
      shared != nullptr ? shared : std::filesystem::path(SLUICE_SOURCE_DIR) / ".." / "shared";
  const std::filesystem::path path = root / relative;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) return std::nullopt;
  return path.string();
}

// A fresh folder, removed with everything in it at the end of the scope.
class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sluice_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data()) != nullptr ? pattern : std::string();
  }
  ~TempDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string File(std::string_view name) const { return path_ + "/" + std::string(name); }

 private:
  std::string path_;
};

}  // namespace sluice

#endif  // SLUICE_TESTS_TEST_PATHS_H_
