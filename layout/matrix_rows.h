// The rows of a whole matrix of a `.sluice` file, for what works on files and not on tokens.
#ifndef SLUICE_LAYOUT_MATRIX_ROWS_H_
#define SLUICE_LAYOUT_MATRIX_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "io/storage_file.h"
#include "layout/sluice_file.h"

namespace sluice {

// rows = all rows of a matrix as they are packed, one after another. `storage` is the file that
// `in` was opened from. DataLoss naming the matrix if a tile does not match its checksum.
absl::Status ReadMatrixRows(const SluiceFile& in, const StorageFile& storage, uint32_t matrix,
                            std::vector<std::byte>& rows);

// What is said where `what` does not match its checksum.
absl::Status DamagedPart(const SluiceFile& in, const std::string& what);

}  // namespace sluice

#endif  // SLUICE_LAYOUT_MATRIX_ROWS_H_
