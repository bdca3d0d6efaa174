// A model in memory, of any mix of source types, for tests of repack; and a repacked file with its
// rows at hand.
#ifndef SLUICE_TESTS_REPACK_TEST_SOURCE_H_
#define SLUICE_TESTS_REPACK_TEST_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "layout/model_source.h"
#include "layout/sluice_file.h"
#include "tests/sluice_image.h"

namespace sluice {

// 2 layers, width 256, FFN 512, 4 heads of 64 with 2 for K and V, 40 tokens. Every tensor holds
// seeded random blocks of its type: any bits where the format allows any, scales of moderate size.
class MemorySource : public ModelSource {
 public:
  // All matrices of one type; norms are F32.
  explicit MemorySource(SourceType type, bool tied_head = false, bool qkv_bias = false);

  // Replaces a tensor by one of another type.
  void SetType(const std::string& name, SourceType type);
  void AddRopeFreqs();

  const std::string& path() const override { return path_; }
  const ModelConfig& config() const override { return config_; }
  const TokenizerData& tokenizer() const override { return tokenizer_; }
  std::span<const SourceTensor> tensors() const override { return tensors_; }
  const SourceTensor* Find(std::string_view name) const override;
  absl::Status ReadTensor(const SourceTensor& tensor, uint64_t offset,
                          std::span<std::byte> dst) const override;

  // Decoded values.
  std::vector<float> Floats(const std::string& name) const;
  std::vector<float> Row(const std::string& name, uint64_t row) const;
  std::vector<float> Column(const std::string& name, uint64_t column) const;

 private:
  void Add(const std::string& name, SourceType type, std::vector<uint64_t> shape);

  std::string path_ = "memory/model.gguf";
  ModelConfig config_;
  TokenizerData tokenizer_;
  std::vector<SourceTensor> tensors_;
  std::map<std::string, std::vector<std::byte>> bytes_;
};

struct RepackedFile {
  explicit RepackedFile(const std::string& path);

  std::span<const std::byte> MatrixRow(MatrixRole role, uint32_t layer, uint32_t row) const;
  std::span<const std::byte> UpRow(uint32_t layer, uint32_t neuron) const;
  std::span<const std::byte> DownColumn(uint32_t layer, uint32_t neuron) const;

  std::unique_ptr<SluiceFile> file;  // null if the file cannot be opened, which is a test failure
  SluiceImage image;
};

std::vector<std::byte> Encoded(WeightType type, std::span<const float> row);
std::vector<float> Decoded(WeightType type, std::span<const std::byte> row);

}  // namespace sluice

#endif  // SLUICE_TESTS_REPACK_TEST_SOURCE_H_
