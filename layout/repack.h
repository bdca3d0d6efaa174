// `sluice repack`: a source model to a `.sluice` file. Streams: memory stays bounded (about 100 MB,
// and learned positions) whatever the model's size.
#ifndef SLUICE_LAYOUT_REPACK_H_
#define SLUICE_LAYOUT_REPACK_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "layout/model_source.h"
#include "layout/sluice_format.h"
#include "layout/weight_type.h"

namespace sluice {

struct RepackOptions {
  // Gate rows and bundles; default: the type nearest to the widest of the source's gate matrices,
  // or up matrices where there is no gate.
  std::optional<WeightType> type;
  // Everything else; default: by matrix, the nearest type that adds little error in any layer.
  std::optional<WeightType> resident_type;
  uint32_t block = 0;  // 0: see MakeDirectory
  bool overwrite = false;
  // Called now and then with bytes written so far and in all; false ends the run with Cancelled.
  std::function<bool(uint64_t, uint64_t)> progress;
};

struct RepackReport {
  uint64_t file_bytes = 0;
  Directory directory;
  Provenance provenance;
};

// The directory that Repack would write: what `--dry-run` shows.
Directory PlanRepack(const ModelSource& source, const RepackOptions& options);

// A sentence for each of gate, up and down whose type in some layers is wider than the bundles'.
std::vector<std::string> NarrowedTensors(const ModelSource& source, const Directory& directory);

// InvalidArgument if `out` is a file of the source or a link to one.
absl::StatusOr<RepackReport> Repack(const ModelSource& source, const std::string& out,
                                    const RepackOptions& options);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_REPACK_H_
