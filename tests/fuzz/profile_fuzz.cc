// Activation profiles. The first byte of an input chooses: a file as it is; or one that the input
// spells out field by field with sizes and checksums that are right, so that it reaches the parser
// of records. What is accepted can be read, and comes back from what it is saved as.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "predictor/activation_profile.h"
#include "tests/profile_bytes.h"

namespace sluice {
namespace {

std::vector<std::byte> BuildProfile(FuzzedDataProvider& input) {
  ProfileBytes profile;
  profile.n_layers = input.ConsumeIntegralInRange<uint32_t>(0, 4);
  profile.n_neurons = input.ConsumeIntegralInRange<uint32_t>(0, 16);
  profile.n_tokens = input.ConsumeIntegralInRange<uint32_t>(0, 16);
  profile.n_sequences = input.ConsumeIntegralInRange<uint32_t>(0, 8);
  profile.has_thresholds = input.ConsumeBool();
  for (TraceBytes* trace : {&profile.train, &profile.held_out}) {
    trace->n_layers = profile.n_layers;
    trace->n_neurons = profile.n_neurons;
    trace->n_tokens = input.ConsumeIntegralInRange<uint32_t>(0, 16);
    trace->sets = input.ConsumeBytes<uint8_t>(input.ConsumeIntegralInRange<size_t>(0, 64));
  }
  profile.records = input.ConsumeRemainingBytes<std::byte>();
  profile.records.resize(4 * profile.n_tokens + 5 * profile.n_sequences +
                         profile.n_layers *
                             (12 + 4 * profile.has_thresholds + 4 * profile.n_neurons));
  return profile.Bytes();
}

void Use(const ActivationProfile& profile) {
  uint64_t end = 0;
  for (const ProfileSequence& s : profile.sequences()) {
    if (s.begin != end) std::abort();
    end += s.n_tokens;
  }
  if (end != profile.tokens().size()) std::abort();
  for (uint32_t l = 0; l < profile.n_layers(); ++l) {
    if (!(profile.overlap(l) >= 0 && profile.overlap(l) <= 1)) std::abort();
    for (const uint32_t count : profile.counts(l)) {
      if (count > profile.n_train_tokens()) std::abort();
    }
  }
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  FuzzedDataProvider input(data, size);
  const bool whole = input.ConsumeBool();
  const std::vector<std::byte> bytes =
      whole ? input.ConsumeRemainingBytes<std::byte>() : sluice::BuildProfile(input);
  const auto profile = sluice::ActivationProfile::Parse(bytes, "fuzz.profile");
  if (!profile.ok()) return 0;
  sluice::Use(*profile);
  const auto saved = profile->Serialize();
  if (!saved.ok()) std::abort();
  const auto again = sluice::ActivationProfile::Parse(*saved, "again.profile");
  if (!again.ok()) std::abort();
  const auto twice = again->Serialize();
  if (!twice.ok() || *twice != *saved) std::abort();
  return 0;
}
