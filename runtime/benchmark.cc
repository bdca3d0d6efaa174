#include "runtime/benchmark.h"

#include <algorithm>

#include "io/clock.h"
#include "io/status.h"

namespace sluice {

void BenchTokens::Restart() {
  if (!text_.empty()) at_ = rng_.Below(static_cast<uint32_t>(text_.size()));
}

int32_t BenchTokens::Next() {
  if (text_.empty()) return static_cast<int32_t>(rng_.Below(vocab_size_));
  return text_[at_++ % text_.size()];
}

absl::StatusOr<BenchSample> RunBenchTest(Decoder& decoder, const BenchTest& test,
                                         BenchTokens& tokens, const std::atomic<int>* stop) {
  decoder.Rewind();
  tokens.Restart();
  std::vector<int32_t> before(test.depth), prompt(test.n_prompt);
  for (std::vector<int32_t>* part : {&before, &prompt}) {
    std::generate(part->begin(), part->end(), [&] { return tokens.Next(); });
  }
  SLUICE_RETURN_IF_ERROR(decoder.Forward(before, stop));
  BenchSample sample;
  sample.token_ns.reserve(test.n_gen);
  const DecoderStats stats = decoder.stats();
  const uint64_t begin_ns = NowNs();
  SLUICE_RETURN_IF_ERROR(decoder.Forward(prompt, stop));
  uint64_t last_ns = NowNs();
  for (uint32_t i = 0; i < test.n_gen; ++i) {
    const int32_t token = tokens.Next();
    SLUICE_RETURN_IF_ERROR(decoder.Forward({&token, 1}, stop));
    const uint64_t now_ns = NowNs();
    sample.token_ns.push_back(now_ns - last_ns);
    last_ns = now_ns;
  }
  sample.wall_ns = last_ns - begin_ns;
  sample.stats = decoder.stats() - stats;
  return sample;
}

double LeastNs(const DecoderStats& stats, double memory_bandwidth, double disk_bandwidth) {
  const double memory_ns = static_cast<double>(stats.touched_bytes) * 1e9 / memory_bandwidth;
  if (stats.flash_bytes == 0) return memory_ns;
  return std::max(memory_ns, static_cast<double>(stats.flash_bytes) * 1e9 / disk_bandwidth);
}

}  // namespace sluice
