// The flags that say what the storage is: --device, --emulate, --emulate-core.
#ifndef SLUICE_TOOLS_DEVICE_FLAGS_H_
#define SLUICE_TOOLS_DEVICE_FLAGS_H_

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "io/device_profile.h"
#include "layout/sluice_file.h"
#include "runtime/decoder.h"
#include "tools/output_files.h"

namespace sluice {

struct DeviceFlags {
  std::string device = "auto";  // a profile, or auto or none
  std::string emulate, emulate_core = "big";
};
void AddDeviceFlags(CLI::App& cmd, DeviceFlags* flags);

// The profiles that a run with these flags reads, the one that is kept beside the model included.
std::vector<NamedFile> DeviceInputs(const DeviceFlags& flags, const std::string& model);

// "big", "middle" or "little"; else InvalidArgument.
absl::StatusOr<CoreClass> ParseCoreClass(const std::string& name);

struct Device {
  std::shared_ptr<const DeviceProfile> profile;  // null: nothing is known
  std::shared_ptr<const DeviceModel> emulated;   // null: the real one
  CoreClass emulated_core = CoreClass::kBig;
  // The model lies on the device that the profile describes, or is read through an emulation of it.
  bool is_profiled = false;
  std::string note;  // one clause on where the profile came from, or why there is none
};

// Loads the profiles that the flags name. With `--device auto` the profile is that of the emulated
// device, or else comes from a probe of the device under the model that may take so many bytes of
// memory; if that is 0, none is made.
// InvalidArgument if a flag is wrong; only a probe that fails is no error but a note.
absl::StatusOr<Device> ReadDevice(const DeviceFlags& flags, const SluiceFile& model,
                                  uint64_t probe_memory, const std::atomic<int>* stop);

// Lets the decoder read through the emulated device, if there is one, and use the profile.
void UseDevice(const Device& device, DecoderOptions* options);

}  // namespace sluice

#endif  // SLUICE_TOOLS_DEVICE_FLAGS_H_
