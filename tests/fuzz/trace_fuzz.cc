// Activation traces. The first byte of an input chooses: a file as it is; or the bytes of the sets,
// in a header that the input spells out with a size and checksum that are right, so that they reach
// the parser of sets. What is accepted can be read, and comes back from what it is saved as.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "predictor/activation_trace.h"
#include "tests/trace_bytes.h"

namespace sluice {
namespace {

std::vector<std::byte> BuildTrace(FuzzedDataProvider& input) {
  TraceBytes trace;
  trace.n_layers = input.ConsumeIntegralInRange<uint32_t>(0, 8);
  trace.n_neurons = input.ConsumeIntegralInRange<uint32_t>(0, 1 << 15);
  trace.n_tokens = input.ConsumeIntegralInRange<uint32_t>(0, 64);
  trace.sets = input.ConsumeRemainingBytes<uint8_t>();
  return trace.Bytes();
}

uint64_t UseSets(const ActivationTrace& trace) {
  uint64_t n_active = 0;
  std::vector<uint32_t> active;
  for (uint32_t t = 0; t < trace.n_tokens(); ++t) {
    for (uint32_t l = 0; l < trace.n_layers(); ++l) {
      trace.Get(t, l, &active);
      n_active += active.size();
      for (size_t i = 0; i < active.size(); ++i) {
        if (active[i] >= trace.n_neurons() || (i > 0 && active[i] <= active[i - 1])) std::abort();
      }
    }
  }
  return n_active;
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  const bool whole = input.ConsumeBool();
  const std::vector<std::byte> bytes =
      whole ? input.ConsumeRemainingBytes<std::byte>() : sluice::BuildTrace(input);
  const auto trace = sluice::ActivationTrace::Parse(bytes, "fuzz.trace");
  if (!trace.ok()) return 0;
  if (sluice::UseSets(*trace) != trace->n_active()) std::abort();
  const auto saved = trace->Serialize();
  if (!saved.ok()) std::abort();
  const auto again = sluice::ActivationTrace::Parse(*saved, "again.trace");
  if (!again.ok() || again->n_tokens() != trace->n_tokens() ||
      sluice::UseSets(*again) != trace->n_active()) {
    std::abort();
  }
  return 0;
}
