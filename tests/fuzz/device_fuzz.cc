// Any text as a device profile: what is accepted gives finite times.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "io/device_profile.h"

namespace sluice {
namespace {

void Use(const DeviceModel& model) {
  for (const bool random : {false, true}) {
    for (const uint32_t block : {512u, 4096u, 24576u, 1u << 20}) {
      for (const uint64_t range : {uint64_t{1} << 20, UINT64_MAX}) {
        for (const CoreClass core : {CoreClass::kBig, CoreClass::kMiddle, CoreClass::kLittle}) {
          const double ns = model.ServiceNs(random, block, range, core);
          if (!(ns > 0) || !std::isfinite(ns)) std::abort();
        }
      }
    }
  }
}

}  // namespace
}  // namespace sluice

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto profile =
      sluice::DeviceProfile::Parse({reinterpret_cast<const char*>(data), size}, "fuzz.json");
  if (profile.ok()) {
    sluice::Use(profile->model());
    if (!std::isfinite(profile->ReadNs(1 << 20, 1 << 30, 8))) std::abort();
    const auto again = sluice::DeviceProfile::Parse(profile->ToJson(), "again.json");
    if (!again.ok()) std::abort();
  }
  return 0;
}
