#include "layout/matrix_rows.h"

#include <span>

#include "absl/strings/str_format.h"
#include "io/status.h"

namespace sluice {

absl::Status ReadMatrixRows(const SluiceFile& in, const StorageFile& storage, uint32_t matrix,
                            std::vector<std::byte>& rows) {
  const MatrixEntry& m = in.matrix(matrix);
  rows.resize(m.rows * m.row_bytes());
  for (uint32_t t = 0; t < m.n_tiles(); ++t) {
    const auto tile = std::span(rows).subspan(size_t{t} * m.rows_per_tile * m.row_bytes(),
                                              m.rows_in_tile(t) * m.row_bytes());
    SLUICE_RETURN_IF_ERROR(storage.ReadExactly(m.offset + uint64_t{t} * m.tile_stride, tile));
    if (!in.TileIsIntact(matrix, t, tile)) {
      return DamagedPart(in,
                         absl::StrFormat("matrix %s of layer %u", MatrixRoleName(m.role), m.layer));
    }
  }
  return absl::OkStatus();
}

absl::Status DamagedPart(const SluiceFile& in, const std::string& what) {
  return absl::DataLossError(absl::StrFormat(
      "%s: %s does not match its checksum; copy or repack the file again", in.path(), what));
}

}  // namespace sluice
