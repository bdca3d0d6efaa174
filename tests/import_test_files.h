// Builders of hand-made input files for the importer tests, good and bad: bytes are put down one by
// one, so that any field can hold any value.
#ifndef SLUICE_TESTS_IMPORT_TEST_FILES_H_
#define SLUICE_TESTS_IMPORT_TEST_FILES_H_

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "layout/byte_io.h"

namespace sluice {

inline void WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

// A GGUF file put down field by field. Counts are given, not derived.
class GgufBytes {
 public:
  GgufBytes(uint64_t n_tensors, uint64_t n_entries, uint32_t version = 3) {
    Raw("GGUF").Put(version).Put(n_tensors).Put(n_entries);
  }

  GgufBytes& String(std::string_view s) { return Length(s.size()).Raw(s); }
  GgufBytes& Length(uint64_t n) { return Put<uint64_t>(n); }
  GgufBytes& Raw(std::string_view s) {
    bytes_.append(s);
    return *this;
  }
  template <typename T>
  GgufBytes& Put(T v) {
    char raw[sizeof(T)];
    StoreLe(raw, v);
    return Raw({raw, sizeof(T)});
  }

  // A metadata entry of type `type` whose value is `v` as it is.
  template <typename T>
  GgufBytes& Entry(std::string_view key, uint32_t type, T v) {
    return String(key).Put<uint32_t>(type).Put(v);
  }
  GgufBytes& StringEntry(std::string_view key, std::string_view value) {
    return String(key).Put<uint32_t>(8).String(value);
  }
  // The head of an array entry; elements follow.
  GgufBytes& ArrayEntry(std::string_view key, uint32_t element_type, uint64_t count) {
    return String(key).Put<uint32_t>(9).Put(element_type).Put(count);
  }
  // `dims` innermost first, as in the file.
  GgufBytes& Tensor(std::string_view name, const std::vector<uint64_t>& dims, uint32_t type,
                    uint64_t offset) {
    String(name).Put<uint32_t>(static_cast<uint32_t>(dims.size()));
    for (const uint64_t d : dims) Put(d);
    return Put(type).Put(offset);
  }
  GgufBytes& PadTo(size_t alignment) {
    while (bytes_.size() % alignment != 0) Put<uint8_t>(0);
    return *this;
  }
  GgufBytes& Data(size_t n) { return Raw(std::string(n, '\1')); }

  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

}  // namespace sluice

#endif  // SLUICE_TESTS_IMPORT_TEST_FILES_H_
