#include "layout/model_source.h"

#include "layout/gguf_source.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<ModelSource>> OpenModelSource(const std::string& path,
                                                             const ImportOptions& options) {
  return OpenGgufSource(path, options);
}

}  // namespace sluice
