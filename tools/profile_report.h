// What `sluice profile` says.
#ifndef SLUICE_TOOLS_PROFILE_REPORT_H_
#define SLUICE_TOOLS_PROFILE_REPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "layout/sluice_file.h"
#include "predictor/activation_profile.h"
#include "predictor/profile_figures.h"

namespace sluice {

struct ProfileLayer {
  double sparsity = 0, overlap = 0, neurons_for_80 = 0;
  Coactivation cold;
  // Mean run of the held-out sets, in the order of the source model and in that of the file.
  double run_in_source = 0, run_in_file = 0;
  double threshold = 0;  // 0: exact zeros
  FrequencyCurve curve;
};

struct ProfileReport {
  std::string model, out;
  std::vector<std::string> texts;
  uint64_t n_text_tokens = 0;  // that there were
  uint32_t n_sequences = 0, sequence_tokens = 0;
  uint32_t n_train = 0, n_held_out = 0;            // tokens
  uint32_t n_train_kept = 0, n_held_out_kept = 0;  // tokens whose sets are in the profile
  bool in_source_order = true;                     // the file keeps neurons as the source did
  std::vector<ProfileLayer> layers;
  FrequencyCurve curve;  // of all neurons of the model
  ProfileLayer mean;     // over the layers; neurons_for_80 over all neurons of the model
};

// All but what the caller knows: names, and the tokens of the texts.
ProfileReport DescribeProfile(const ActivationProfile& profile, const SluiceFile& file);

std::string ProfileTable(const ProfileReport& report);
std::string ProfileJson(const ProfileReport& report);  // one document

}  // namespace sluice

#endif  // SLUICE_TOOLS_PROFILE_REPORT_H_
