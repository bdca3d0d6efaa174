#include "tests/sluice_image.h"

#include <zstd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "layout/byte_io.h"

namespace sluice {

SluiceImage SluiceImage::Load(const std::string& path) {
  SluiceImage image;
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  image.bytes.resize(static_cast<size_t>(in.tellg()));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(image.bytes.data()),
          static_cast<std::streamsize>(image.bytes.size()));
  const auto table = LoadLe<uint64_t>(&image.bytes[40]);
  const auto count = LoadLe<uint32_t>(&image.bytes[48]);
  ByteReader reader(std::span(image.bytes).subspan(table, uint64_t{count} * kSectionEntryBytes));
  for (uint32_t i = 0; i < count; ++i) {
    Entry e;
    e.kind = reader.Get<uint32_t>();
    reader.Get<uint32_t>();
    for (uint64_t* v : {&e.offset, &e.stored_bytes, &e.raw_bytes, &e.checksum}) {
      *v = reader.Get<uint64_t>();
    }
    image.entries.push_back(e);
  }
  return image;
}

void SluiceImage::DropWeights() {
  uint64_t sections = bytes.size();
  for (const Entry& e : entries) sections = std::min(sections, e.offset);
  hole = sections - kHeaderBytes;
  bytes.erase(bytes.begin() + kHeaderBytes, bytes.begin() + static_cast<ptrdiff_t>(sections));
}

SluiceImage::Entry& SluiceImage::entry(SectionKind kind) {
  const auto found = std::find_if(entries.begin(), entries.end(), [kind](const Entry& e) {
    return e.kind == static_cast<uint32_t>(kind);
  });
  if (found == entries.end()) std::abort();  // a mistake of the test
  return *found;
}

std::vector<std::byte> SluiceImage::ReadSection(SectionKind kind) {
  const Entry& e = entry(kind);
  std::vector<std::byte> raw(e.raw_bytes);
  ZSTD_decompress(raw.data(), raw.size(), &bytes[e.offset - hole], e.stored_bytes);
  return raw;
}

void SluiceImage::ReplaceSection(SectionKind kind, std::span<const std::byte> raw) {
  std::vector<std::byte> stored(ZSTD_compressBound(raw.size()));
  stored.resize(ZSTD_compress(stored.data(), stored.size(), raw.data(), raw.size(), 1));
  ReplaceStored(kind, stored, raw.size());
}

void SluiceImage::ReplaceStored(SectionKind kind, std::span<const std::byte> stored,
                                uint64_t raw_bytes) {
  Entry& e = entry(kind);
  e.offset = bytes.size() + hole;
  e.stored_bytes = stored.size();
  e.raw_bytes = raw_bytes;
  e.checksum = Checksum64(stored);
  bytes.insert(bytes.end(), stored.begin(), stored.end());
}

void SluiceImage::Seal() {
  ByteWriter table;
  for (const Entry& e : entries) {
    table.Put<uint32_t>(e.kind);
    table.Put<uint32_t>(0);
    for (const uint64_t v : {e.offset, e.stored_bytes, e.raw_bytes, e.checksum}) {
      table.Put<uint64_t>(v);
    }
  }
  const uint64_t offset = bytes.size() + hole;
  bytes.insert(bytes.end(), table.bytes().begin(), table.bytes().end());
  StoreLe<uint64_t>(&bytes[32], bytes.size() + hole);
  StoreLe<uint64_t>(&bytes[40], offset);
  StoreLe<uint32_t>(&bytes[48], static_cast<uint32_t>(entries.size()));
  StoreLe<uint64_t>(&bytes[56], Checksum64(table.bytes()));
  SealHeader();
}

void SluiceImage::SealHeader() {
  StoreLe<uint64_t>(&bytes[kHeaderBytes - 8], Checksum64(std::span(bytes).first(kHeaderBytes - 8)));
}

void SluiceImage::Write(const std::string& path) const {
  std::ofstream out(path, std::ios::binary);
  const auto* data = reinterpret_cast<const char*>(bytes.data());
  out.write(data, kHeaderBytes);
  out.seekp(static_cast<std::streamoff>(kHeaderBytes + hole));
  out.write(data + kHeaderBytes, static_cast<std::streamsize>(bytes.size() - kHeaderBytes));
}

}  // namespace sluice
