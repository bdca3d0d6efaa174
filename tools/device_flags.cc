#include "tools/device_flags.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "io/emulated_device.h"
#include "io/status.h"
#include "io/suite/device_probe.h"
#include "io/suite/system_state.h"
#include "tools/flags.h"

namespace sluice {

void AddDeviceFlags(CLI::App& cmd, DeviceFlags* flags) {
  cmd.add_option("--device", flags->device,
                 "Device profile (of iobench --profile) by which reads are merged; auto: a short "
                 "measurement, kept beside the model; none")
      ->capture_default_str()
      ->check(NotEmpty());
  CLI::Option* const emulate =
      cmd.add_option("--emulate", flags->emulate,
                     "Read through an emulation of the device that this profile describes")
          ->check(NotEmpty());
  cmd.add_option("--emulate-core", flags->emulate_core, "With --emulate: big, middle, little")
      ->capture_default_str()
      ->needs(emulate);
}

std::vector<NamedFile> DeviceInputs(const DeviceFlags& flags, const std::string& model) {
  const bool is_file = flags.device != "auto" && flags.device != "none";
  return {{"--device", is_file ? flags.device : ""},
          {"--emulate", flags.emulate},
          {"the kept device profile", ProbeCachePath(model)}};
}

absl::StatusOr<CoreClass> ParseCoreClass(const std::string& name) {
  for (const CoreClass core : {CoreClass::kBig, CoreClass::kMiddle, CoreClass::kLittle}) {
    if (name == CoreClassName(core)) return core;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--emulate-core is \"", name, "\"; known are big, middle, little"));
}

absl::StatusOr<Device> ReadDevice(const DeviceFlags& flags, const SluiceFile& model,
                                  uint64_t probe_memory, const std::atomic<int>* stop) {
  Device device;
  SLUICE_ASSIGN_OR_RETURN(device.emulated_core, ParseCoreClass(flags.emulate_core));
  std::shared_ptr<const DeviceProfile> emulated;
  if (!flags.emulate.empty()) {
    SLUICE_ASSIGN_OR_RETURN(DeviceProfile profile, DeviceProfile::Load(flags.emulate));
    emulated = std::make_shared<const DeviceProfile>(std::move(profile));
    device.emulated = std::shared_ptr<const DeviceModel>(emulated, &emulated->model());
  }
  if (flags.device == "none") {
    device.note = "no profile, as asked";
  } else if (flags.device != "auto") {
    SLUICE_ASSIGN_OR_RETURN(DeviceProfile profile, DeviceProfile::Load(flags.device));
    device.is_profiled = emulated != nullptr ? emulated->ToJson() == profile.ToJson()
                                             : !profile.device().empty() &&
                                                   profile.device() == DeviceIdentity(model.path());
    device.profile = std::make_shared<const DeviceProfile>(std::move(profile));
    device.note = flags.device;
  } else if (emulated != nullptr) {
    device.profile = emulated;
    device.is_profiled = true;
    device.note = "that of the emulation";
  } else if (probe_memory > 0) {
    auto probed = ProbeDevice(model.path(), model.bundles().layer_bytes(), probe_memory, stop);
    if (absl::IsCancelled(probed.status())) return probed.status();
    if (probed.ok()) {
      device.profile = std::make_shared<const DeviceProfile>(std::move(probed->profile));
      device.is_profiled = true;
      device.note = std::move(probed->note);
    } else {
      device.note = absl::StrCat("no profile: ", probed.status().message());
    }
  }
  return device;
}

void UseDevice(const Device& device, DecoderOptions* options) {
  options->profile = device.profile;
  if (device.emulated == nullptr) return;
  options->wrap_engine = [model = device.emulated, core = device.emulated_core](
                             std::unique_ptr<ReadEngine> inner, const StorageFile&) {
    return std::make_unique<EmulatedEngine>(std::move(inner),
                                            std::make_shared<EmulatedDevice>(*model), core);
  };
}

}  // namespace sluice
