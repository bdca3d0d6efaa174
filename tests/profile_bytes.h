// Activation profiles put down field by field, so that any field can hold any value; what is not
// set is as a good profile has it, checksums included.
#ifndef SLUICE_TESTS_PROFILE_BYTES_H_
#define SLUICE_TESTS_PROFILE_BYTES_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "layout/byte_io.h"
#include "layout/sluice_format.h"
#include "tests/trace_bytes.h"

namespace sluice {

struct ProfileBytes {
  std::string magic = "SLUICEAP";
  uint32_t version = 1, n_layers = 1, n_neurons = 1, d_model = 32;
  uint64_t weights_id = 1;
  uint32_t n_tokens = 0, n_sequences = 0, has_thresholds = 0;
  std::vector<std::byte> records;  // before compression
  TraceBytes train, held_out;
  std::array<std::optional<uint64_t>, 3> n_bytes, checksums;  // else those of the parts
  std::optional<uint64_t> checksum;                           // else that of the header
  std::optional<std::vector<std::byte>> frame;                // else `records` compressed
  std::vector<std::byte> rest;                                // after the end

  std::vector<std::byte> Bytes() const {
    TraceBytes packer;
    const auto* raw = reinterpret_cast<const uint8_t*>(records.data());
    packer.sets.assign(raw, raw + records.size());
    const std::array<std::vector<std::byte>, 3> parts = {frame.value_or(packer.Frame()),
                                                         train.Bytes(), held_out.Bytes()};
    ByteWriter out;
    out.PutBytes(magic.data(), magic.size());
    for (const uint32_t v : {version, n_layers, n_neurons, d_model}) out.Put(v);
    out.Put(weights_id);
    for (const uint32_t v : {n_tokens, n_sequences, has_thresholds}) out.Put(v);
    for (size_t i = 0; i < 3; ++i) out.Put<uint64_t>(n_bytes[i].value_or(parts[i].size()));
    for (size_t i = 0; i < 3; ++i) out.Put<uint64_t>(checksums[i].value_or(Checksum64(parts[i])));
    out.Put<uint64_t>(checksum.value_or(Checksum64(out.bytes())));
    for (const auto& part : parts) out.PutBytes(part.data(), part.size());
    out.PutBytes(rest.data(), rest.size());
    return out.bytes();
  }
};

}  // namespace sluice

#endif  // SLUICE_TESTS_PROFILE_BYTES_H_
