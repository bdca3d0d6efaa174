// Little-endian encoding of the small binary records in a `.sluice` file: one growing writer, and a
// reader that never looks past its span.
#ifndef SLUICE_LAYOUT_BYTE_IO_H_
#define SLUICE_LAYOUT_BYTE_IO_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace sluice {

static_assert(std::endian::native == std::endian::little,
              "LoadLe and StoreLe copy bytes as they are; a big-endian machine needs a swap here");

// Loads a little-endian integer or float from possibly unaligned memory.
template <typename T>
T LoadLe(const void* p) {
  static_assert(std::is_arithmetic_v<T>);
  T v;
  std::memcpy(&v, p, sizeof(v));
  return v;
}

template <typename T>
void StoreLe(void* p, T v) {
  static_assert(std::is_arithmetic_v<T>);
  std::memcpy(p, &v, sizeof(v));
}

class ByteWriter {
 public:
  template <typename T>
  void Put(T v) {
    const size_t at = bytes_.size();
    bytes_.resize(at + sizeof(T));
    StoreLe(bytes_.data() + at, v);
  }
  // A u32 length, then the bytes.
  void PutString(std::string_view s) {
    Put<uint32_t>(static_cast<uint32_t>(s.size()));
    PutBytes(s.data(), s.size());
  }
  void PutBytes(const void* p, size_t n) {
    const auto* b = static_cast<const std::byte*>(p);
    bytes_.insert(bytes_.end(), b, b + n);
  }

  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Reads what ByteWriter wrote. After the first read past the end ok() is false and every further
// read gives zero or an empty string, so a caller may check once at the end; a count that sizes an
// allocation must be bounded by remaining() first.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  T Get() {
    if (!Has(sizeof(T))) return T{};
    const T v = LoadLe<T>(bytes_.data() + at_);
    at_ += sizeof(T);
    return v;
  }
  std::string_view GetString() {
    const auto n = Get<uint32_t>();
    if (!Has(n)) return {};
    const std::string_view s(reinterpret_cast<const char*>(bytes_.data() + at_), n);
    at_ += n;
    return s;
  }
  std::span<const std::byte> GetBytes(size_t n) {
    if (!Has(n)) return {};
    const auto s = bytes_.subspan(at_, n);
    at_ += n;
    return s;
  }

  size_t remaining() const { return bytes_.size() - at_; }
  bool ok() const { return ok_; }

 private:
  bool Has(size_t n) {
    if (!ok_ || n > bytes_.size() - at_) ok_ = false;
    return ok_;
  }

  std::span<const std::byte> bytes_;
  size_t at_ = 0;
  bool ok_ = true;
};

}  // namespace sluice

#endif  // SLUICE_LAYOUT_BYTE_IO_H_
