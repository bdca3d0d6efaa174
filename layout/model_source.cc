#include "layout/model_source.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "layout/gguf_source.h"
#include "layout/hf_source.h"
#include "layout/printable.h"

namespace sluice {
namespace {

absl::StatusOr<std::unique_ptr<ModelSource>> Open(const std::string& path,
                                                  const ImportOptions& options) {
  std::error_code ignored;
  if (!std::filesystem::is_directory(path, ignored)) return OpenGgufSource(path, options);
  if (std::filesystem::exists(path + "/config.json", ignored)) return OpenHfSource(path, options);
  return absl::InvalidArgumentError(absl::StrCat(
      path,
      ": is a directory without config.json; give a GGUF file or the folder of a Hugging Face "
      "model (config.json, *.safetensors, tokenizer files)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelSource>> OpenModelSource(const std::string& path,
                                                             const ImportOptions& options) {
  auto source = Open(path, options);
  // Messages quote names, keys and tokens of the file.
  if (!source.ok()) return Printable(source.status());
  return source;
}

}  // namespace sluice
