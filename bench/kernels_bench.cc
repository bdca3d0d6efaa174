// Speed of the kernels in GB of weights per second, for every ISA of this machine and every weight
// type, beside the rate at which the same memory can merely be read (ReadMemory in the same run).
//
// Names: what / ISA / weight type / total size of the rows. "scattered" rows are visited through
// pointers in random order, as neurons come from the cache.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "benchmark/benchmark.h"
#include "layout/weight_type.h"
#include "runtime/kernels/kernels.h"

namespace sluice {
namespace {

constexpr size_t kN = 4096;                  // the width of a 7B model
constexpr size_t kCachedBytes = 256 << 10;   // stays in a core's own cache
constexpr size_t kMemoryBytes = 256u << 20;  // larger than any cache

// Random weights, in order and scattered. Like the runtime's arenas they lie in huge pages where
// the system grants them.
class Rows {
 public:
  Rows(WeightType type, size_t bytes)
      : type_(type),
        stride_(RowBytes(type, kN)),
        n_rows_(bytes / stride_),
        bytes_(static_cast<std::byte*>(std::aligned_alloc(kHugePage, bytes)), std::free) {
    madvise(bytes_.get(), bytes, MADV_HUGEPAGE);
    std::mt19937 random(1);
    std::vector<float> row(kN);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& w : row) w = uniform(random);
    EncodeRow(type, row, {bytes_.get(), stride_});
    for (size_t r = 0; r < n_rows_; ++r) {
      pointers_.push_back(bytes_.get() + r * stride_);
      if (r > 0) std::memcpy(bytes_.get() + r * stride_, bytes_.get(), stride_);
    }
    std::shuffle(pointers_.begin(), pointers_.end(), random);
  }

  RowSet InOrder() const { return {.base = bytes_.get(), .stride = stride_, .n_rows = n_rows_}; }
  RowSet Scattered() const { return {.pointers = pointers_.data(), .n_rows = n_rows_}; }
  WeightType type() const { return type_; }
  size_t bytes() const { return n_rows_ * stride_; }

 private:
  static constexpr size_t kHugePage = 2 << 20;

  WeightType type_;
  size_t stride_;
  size_t n_rows_;
  std::unique_ptr<std::byte, decltype(&std::free)> bytes_;
  std::vector<const std::byte*> pointers_;
};

// Keeps the rows of the last benchmark: the next one mostly wants the same.
class RowsPool {
 public:
  const Rows& Get(WeightType type, size_t bytes) {
    if (rows_ == nullptr || type != rows_->type() || bytes != bytes_) {
      rows_.reset();
      rows_ = std::make_unique<Rows>(type, bytes);
      bytes_ = bytes;
    }
    return *rows_;
  }

 private:
  std::unique_ptr<Rows> rows_;
  size_t bytes_ = 0;
};

struct Vectors {
  Vectors(const KernelTable& table, size_t count)
      : f(kN * count),
        q(kQuantStride * count),
        scale(kN / kQuantBlock * count),
        block_sums(kN / kQuantBlock * count) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    for (float& x : f) x = normal(random);
    for (size_t v = 0; v < count; ++v) {
      const size_t block = v * (kN / kQuantBlock);
      table.quantize(&f[v * kN], kN, &q[v * kQuantStride], &scale[block], &block_sums[block]);
      views.push_back({.f = f.data() + v * kN,
                       .q = q.data() + v * kQuantStride,
                       .scale = scale.data() + v * (kN / kQuantBlock),
                       .block_sums = block_sums.data() + v * (kN / kQuantBlock)});
    }
  }
  static constexpr size_t kQuantStride = kN + 64;  // as the runtime's: see activations.h

  std::vector<float> f;
  std::vector<int8_t> q;
  std::vector<float> scale;
  std::vector<int32_t> block_sums;
  std::vector<VectorView> views;
};

void Dot(benchmark::State& state, RowsPool* pool, const KernelTable& table, WeightType type,
         size_t bytes, bool scattered, size_t n_vectors) {
  const Rows& rows = pool->Get(type, bytes);
  const RowSet set = scattered ? rows.Scattered() : rows.InOrder();
  const Vectors x(table, n_vectors);
  std::vector<float> out(set.n_rows * n_vectors);
  for (auto _ : state) {
    table.dot[static_cast<size_t>(type)](set, kN, x.views.data(), n_vectors, out.data(),
                                         set.n_rows);
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(rows.bytes()));
  state.counters["MAC/s"] = benchmark::Counter(static_cast<double>(set.n_rows * kN * n_vectors),
                                               benchmark::Counter::kIsIterationInvariantRate);
}

void Axpy(benchmark::State& state, RowsPool* pool, const KernelTable& table, WeightType type,
          size_t bytes, bool scattered) {
  const Rows& rows = pool->Get(type, bytes);
  const RowSet set = scattered ? rows.Scattered() : rows.InOrder();
  std::vector<float> y(kN);
  // Of alternating sign, so that y stays small.
  std::vector<float> c(set.n_rows);
  for (size_t r = 0; r < c.size(); ++r) c[r] = r % 2 ? 0.5f : -0.5f;
  for (auto _ : state) {
    table.axpy[static_cast<size_t>(type)](set, kN, c.data(), 0, kN, y.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(rows.bytes()));
}

void Quantize(benchmark::State& state, const KernelTable& table) {
  Vectors x(table, 1);
  for (auto _ : state) {
    table.quantize(x.f.data(), kN, x.q.data(), x.scale.data(), x.block_sums.data());
    benchmark::ClobberMemory();
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(kN * sizeof(float)));
}

void RegisterTable(const KernelTable& table, RowsPool* pool) {
  const std::string isa(table.name);
  for (const WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kQ8, WeightType::kQ4}) {
    const std::string suffix = "/" + isa + "/" + std::string(WeightTypeName(type));
    const auto add = [&](const std::string& name, auto function, auto... args) {
      benchmark::RegisterBenchmark(name.c_str(), function, pool, table, type, args...);
    };
    add("Dot" + suffix + "/cached", Dot, kCachedBytes, false, 1);
    add("Dot16Vectors" + suffix + "/cached", Dot, kCachedBytes, false, 16);
    add("Dot128Vectors" + suffix + "/cached", Dot, kCachedBytes, false, 128);
    add("Axpy" + suffix + "/cached", Axpy, kCachedBytes, false);
    add("Dot" + suffix + "/memory", Dot, kMemoryBytes, false, 1);
    add("Dot" + suffix + "/memory/scattered", Dot, kMemoryBytes, true, 1);
    add("Axpy" + suffix + "/memory", Axpy, kMemoryBytes, false);
    add("Axpy" + suffix + "/memory/scattered", Axpy, kMemoryBytes, true);
  }
  benchmark::RegisterBenchmark(("Quantize/" + isa).c_str(), Quantize, table);
}

// The bound: a plain sum over as many bytes.
void ReadMemory(benchmark::State& state, RowsPool* pool, size_t bytes) {
  const std::byte* p = pool->Get(WeightType::kF32, bytes).InOrder().base;
  for (auto _ : state) {
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
      uint64_t word;
      std::memcpy(&word, p + at, sizeof(word));
      sum += word;
    }
    benchmark::DoNotOptimize(sum);
  }
  state.SetBytesProcessed(state.iterations() * static_cast<int64_t>(bytes));
}

}  // namespace
}  // namespace sluice

int main(int argc, char** argv) {
  sluice::RowsPool pool;
  benchmark::RegisterBenchmark("ReadMemory/cached", sluice::ReadMemory, &pool,
                               sluice::kCachedBytes);
  benchmark::RegisterBenchmark("ReadMemory/memory", sluice::ReadMemory, &pool,
                               sluice::kMemoryBytes);
  for (const sluice::KernelTable* table : sluice::AvailableKernels()) {
    sluice::RegisterTable(*table, &pool);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
