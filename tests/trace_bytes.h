// Activation traces put down field by field, so that any field can hold any value; what is not set
// is as a good trace has it.
#ifndef SLUICE_TESTS_TRACE_BYTES_H_
#define SLUICE_TESTS_TRACE_BYTES_H_

#include <zstd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layout/byte_io.h"
#include "layout/sluice_format.h"

namespace sluice {

struct TraceBytes {
  std::string magic = "SLUICEAT";
  uint32_t version = 1;
  uint32_t n_layers = 1, n_neurons = 1, n_tokens = 0;
  uint64_t model_id = 1;
  std::vector<uint8_t> sets;                    // before compression
  std::optional<uint64_t> n_bytes, checksum;    // else those of `sets`
  std::optional<std::vector<std::byte>> frame;  // else `sets` compressed

  std::vector<std::byte> Frame() const {
    std::vector<std::byte> out(ZSTD_compressBound(sets.size()));
    const size_t n = ZSTD_compress(out.data(), out.size(), sets.data(), sets.size(), 1);
    if (ZSTD_isError(n)) std::abort();
    out.resize(n);
    return out;
  }

  std::vector<std::byte> Bytes() const {
    ByteWriter out;
    out.PutBytes(magic.data(), magic.size());
    for (const uint32_t v : {version, n_layers, n_neurons, n_tokens}) out.Put(v);
    out.Put(model_id);
    out.Put<uint64_t>(n_bytes.value_or(sets.size()));
    out.Put<uint64_t>(checksum.value_or(Checksum64(std::as_bytes(std::span(sets)))));
    const std::vector<std::byte> packed = frame.value_or(Frame());
    out.PutBytes(packed.data(), packed.size());
    return out.bytes();
  }
};

}  // namespace sluice

#endif  // SLUICE_TESTS_TRACE_BYTES_H_
