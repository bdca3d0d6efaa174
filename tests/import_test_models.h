// A tiny model of the Llama family or a relative for importer tests: every part can be changed
// before it is written, so that a test states only what differs from a good model.
#ifndef SLUICE_TESTS_IMPORT_TEST_MODELS_H_
#define SLUICE_TESTS_IMPORT_TEST_MODELS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "layout/model_source.h"

namespace sluice {

class GgufWriter;

struct TinyTensor {
  std::vector<uint64_t> shape;
  std::vector<float> values;
  SourceType type = SourceType::kF32;
};

// 2 layers, width 32, FFN 44, 4 heads of 8 with 2 for K and V, 8 tokens, untied head, 64 positions;
// "opt" has 4 heads for K and V and a tied head. Weights are seeded random numbers that half and
// bfloat16 hold exactly. "qwen2" has biases on Q, K and V; "bamboo" comes without predictors here.
std::map<std::string, TinyTensor> TinyTensors(const std::string& architecture);

struct TinyGguf {
  explicit TinyGguf(const std::string& arch = "llama");
  void Write(const std::string& path) const;
  // As `parts` files PREFIX-0000N-of-0000M.gguf, with the tensors dealt out in turn.
  void WriteSplit(const std::string& prefix, uint16_t parts) const;

  std::map<std::string, std::string> strings;
  std::map<std::string, uint32_t> ints;
  std::map<std::string, float> floats;
  std::map<std::string, bool> bools;
  std::map<std::string, std::vector<int32_t>> int_arrays;
  std::map<std::string, std::vector<std::string>> string_arrays;
  std::vector<std::string> tokens;
  std::map<std::string, TinyTensor> tensors;

 private:
  void AddMetadata(GgufWriter& writer) const;
};

// A folder as Hugging Face's libraries write it, with the same weights as the TinyGguf of the
// architecture.
struct TinyFolder {
  explicit TinyFolder(const std::string& architecture = "qwen2");
  // Writes into `folder`, which must exist. With `shards` > 0 the tensors are dealt out over that
  // many files in turn, with an index.
  void Write(const std::string& folder, int shards = 0) const;

  // Members of config.json by name; values are JSON.
  std::map<std::string, std::string> config;
  std::map<std::string, TinyTensor> tensors;  // by Hugging Face's names
  std::string tokenizer_json;
};

// All values of a tensor of the source, decoded; empty if the source has none of that name.
std::vector<float> SourceFloats(const ModelSource& source, const std::string& name);

}  // namespace sluice

#endif  // SLUICE_TESTS_IMPORT_TEST_MODELS_H_
