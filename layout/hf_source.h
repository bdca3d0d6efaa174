// A Hugging Face folder as a ModelSource: config.json, model.safetensors or the shards that
// model.safetensors.index.json names, and the tokenizer's files. Other files are ignored.
#ifndef SLUICE_LAYOUT_HF_SOURCE_H_
#define SLUICE_LAYOUT_HF_SOURCE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "layout/model_source.h"

namespace sluice {

absl::StatusOr<std::unique_ptr<ModelSource>> OpenHfSource(const std::string& folder,
                                                          const ImportOptions& options);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_HF_SOURCE_H_
