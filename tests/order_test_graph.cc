// Pair counts against counting one by one, and the path against a plain greedy over all pairs.
#include <algorithm>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "layout/coactivation.h"
#include "layout/greedy_path.h"

namespace sluice {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Bits = std::vector<std::vector<bool>>;  // {neurons, tokens}

uint32_t Together(const Bits& bits, uint32_t a, uint32_t b) {
  uint32_t n = 0;
  for (size_t t = 0; t < bits[a].size(); ++t) n += bits[a][t] && bits[b][t];
  return n;
}

// Neurons by falling number of firings; neuron i fires with a probability that falls with i.
Bits RandomBits(uint32_t n_neurons, uint32_t n_tokens, double most, unsigned seed) {
  std::mt19937 rng(seed);
  Bits bits(n_neurons, std::vector<bool>(n_tokens));
  for (uint32_t i = 0; i < n_neurons; ++i) {
    std::bernoulli_distribution fires(most * (n_neurons - i) / n_neurons);
    for (uint32_t t = 0; t < n_tokens; ++t) bits[i][t] = fires(rng);
  }
  std::stable_sort(bits.begin(), bits.end(), [](const auto& a, const auto& b) {
    return std::count(a.begin(), a.end(), true) > std::count(b.begin(), b.end(), true);
  });
  return bits;
}

Coactivation Record(const Bits& bits, uint32_t n_tokens) {
  Coactivation fired(static_cast<uint32_t>(bits.size()), n_tokens);
  for (uint32_t i = 0; i < bits.size(); ++i) {
    for (uint32_t t = 0; t < n_tokens; ++t) {
      if (bits[i][t]) fired.Set(i, t);
    }
  }
  return fired;
}

// The algorithm as it is written down: all pairs, sorted.
std::vector<std::vector<uint32_t>> PlainGreedy(const Bits& bits) {
  const auto n = static_cast<uint32_t>(bits.size());
  std::vector<std::tuple<int, uint32_t, uint32_t>> pairs;
  for (uint32_t a = 0; a < n; ++a) {
    for (uint32_t b = a + 1; b < n; ++b) {
      const int count = static_cast<int>(Together(bits, a, b));
      if (count > 0) pairs.emplace_back(-count, a, b);
    }
  }
  std::sort(pairs.begin(), pairs.end());
  std::vector<std::vector<uint32_t>> neighbours(n);
  std::vector<uint32_t> chain(n);
  std::iota(chain.begin(), chain.end(), 0u);
  for (const auto& [count, a, b] : pairs) {
    if (neighbours[a].size() == 2 || neighbours[b].size() == 2 || chain[a] == chain[b]) continue;
    neighbours[a].push_back(b);
    neighbours[b].push_back(a);
    std::replace(chain.begin(), chain.end(), uint32_t{chain[b]}, uint32_t{chain[a]});
  }
  std::vector<std::vector<uint32_t>> chains;
  std::vector<bool> done(n);
  for (uint32_t end = 0; end < n; ++end) {
    if (done[end] || neighbours[end].size() == 2) continue;
    std::vector<uint32_t>& walk = chains.emplace_back();
    for (bool more = true; more;) {
      const uint32_t at = walk.empty() ? end : walk.back();
      if (walk.empty()) walk.push_back(end);
      done[at] = true;
      more = false;
      for (const uint32_t next : neighbours[at]) {
        if (!done[next] && !more) {
          walk.push_back(next);
          more = true;
        }
      }
    }
  }
  return chains;
}

TEST(CoactivationTest, CountsAsCountingOneByOneDoes) {
  for (const uint32_t n_tokens : {1u, 63u, 64u, 65u, 127u, 129u, 1023u, 1024u, 1025u, 5000u}) {
    SCOPED_TRACE(n_tokens);
    const Bits bits = RandomBits(9, n_tokens, 1.0, n_tokens);
    const Coactivation fired = Record(bits, n_tokens);
    const std::vector<uint32_t> others = {8, 0, 3, 7};
    for (uint32_t a = 0; a < 9; ++a) {
      EXPECT_EQ(fired.Count(a), Together(bits, a, a));
      std::vector<uint32_t> counts(others.size());
      fired.CountTogether(a, others, counts);
      for (size_t i = 0; i < others.size(); ++i) {
        EXPECT_EQ(counts[i], Together(bits, a, others[i]));
      }
    }
  }
}

TEST(CoactivationTest, CountsEveryBitOfNeuronsThatAlwaysFire) {
  for (const uint32_t n_tokens : {1u, 1024u, 4096u, 40000u}) {
    const Bits bits(2, std::vector<bool>(n_tokens, true));
    const Coactivation fired = Record(bits, n_tokens);
    std::vector<uint32_t> count(1);
    fired.CountTogether(0, std::vector<uint32_t>{1}, count);
    EXPECT_EQ(count[0], n_tokens);
  }
}

TEST(GreedyPathTest, IsThePlainGreedyPathHoweverFewPairsFitInMemory) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    const uint32_t n = 20 + 15 * (seed % 6);
    const uint32_t n_tokens = seed < 6 ? 40 : 300;
    const Bits bits = RandomBits(n, n_tokens, seed % 2 == 0 ? 0.15 : 0.6, seed);
    const Coactivation fired = Record(bits, n_tokens);
    const auto plain = PlainGreedy(bits);
    for (const size_t most_pairs :
         {size_t{0}, size_t{1}, size_t{37}, size_t{500}, kPairsInMemory}) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << most_pairs << " pairs");
      EXPECT_EQ(GreedyChains(fired, most_pairs), plain);
    }
  }
}

TEST(GreedyPathTest, LinksTheHeaviestPairsFirst) {
  // 0-1 fire together 5 times, 1-2 4 times, 0-2 3 times (which would close a ring), 2-3 once.
  Coactivation fired(4, 20);
  uint32_t token = 0;
  const auto fire = [&](int times, std::vector<uint32_t> neurons) {
    for (int i = 0; i < times; ++i, ++token) {
      for (const uint32_t n : neurons) fired.Set(n, token);
    }
  };
  fire(3, {0, 1, 2});
  fire(2, {0, 1});
  fire(1, {1, 2});
  fire(1, {2, 3});
  EXPECT_THAT(GreedyChains(fired), ElementsAre(ElementsAre(0, 1, 2, 3)));
}

TEST(GreedyPathTest, LeavesAloneWhatNeverFiresTogether) {
  Coactivation fired(3, 3);
  for (uint32_t i = 0; i < 3; ++i) fired.Set(i, i);
  EXPECT_THAT(GreedyChains(fired), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  EXPECT_THAT(GreedyChains(Coactivation(2, 0)), ElementsAre(ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(GreedyChains(Coactivation(0, 10)), IsEmpty());
}

}  // namespace
}  // namespace sluice
