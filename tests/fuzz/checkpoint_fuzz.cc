// Checkpoints of predictors. The first byte of an input chooses: a file as it is; or one whose
// checksum is made right, so that the fields reach their checks. What is accepted comes back from
// what it is saved as.
#include <fuzzer/FuzzedDataProvider.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <span>
#include <vector>

#include "layout/byte_io.h"
#include "layout/sluice_format.h"
#include "predictor/predictor_checkpoint.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint32_t kModel = 32, kFf = 4;
  FuzzedDataProvider input(data, size);
  const bool mend = input.ConsumeBool();
  auto bytes = input.ConsumeRemainingBytes<std::byte>();
  if (mend && bytes.size() >= 8) {
    const size_t end = bytes.size() - 8;
    sluice::StoreLe(&bytes[end], sluice::Checksum64(std::span(bytes).first(end)));
  }
  const auto checkpoint = sluice::PredictorCheckpoint::Parse(bytes, "fuzz.predictor", kModel, kFf);
  if (!checkpoint.ok()) return 0;
  const auto saved = checkpoint->Serialize();
  const auto again = sluice::PredictorCheckpoint::Parse(saved, "again.predictor", kModel, kFf);
  if (!again.ok() || again->Serialize() != saved) std::abort();
  return 0;
}
