// The bytes of a `.sluice` file with its parts open to change: a test or a fuzzer damages one field
// and seals the image again, so that every checksum is right and only the field is wrong.
#ifndef SLUICE_TESTS_SLUICE_IMAGE_H_
#define SLUICE_TESTS_SLUICE_IMAGE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "layout/sluice_format.h"

namespace sluice {

struct SluiceImage {
  // An entry of the section table, as stored.
  struct Entry {
    uint32_t kind = 0;
    uint64_t offset = 0, stored_bytes = 0, raw_bytes = 0, checksum = 0;
  };

  // Takes apart a file that is known to be good.
  static SluiceImage Load(const std::string& path);
  // Leaves the weights out of `bytes`, for those who look at the records only: the file then has
  // `hole` bytes of zeros behind the header.
  void DropWeights();

  Entry& entry(SectionKind kind);
  std::vector<std::byte> ReadSection(SectionKind kind);
  // Stores new contents behind all the rest; the table is updated, and Seal makes it valid.
  void ReplaceSection(SectionKind kind, std::span<const std::byte> raw);
  // The same with bytes that are stored as they are and claim to unpack to `raw_bytes`.
  void ReplaceStored(SectionKind kind, std::span<const std::byte> stored, uint64_t raw_bytes);

  // Puts the table of `entries` at the end and makes the header's size, table and checksums right.
  void Seal();
  // Recomputes the header's own checksum only, after a header field was changed.
  void SealHeader();

  void Write(const std::string& path) const;

  std::vector<std::byte> bytes;
  uint64_t hole = 0;
  std::vector<Entry> entries;
};

}  // namespace sluice

#endif  // SLUICE_TESTS_SLUICE_IMAGE_H_
