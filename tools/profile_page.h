// The report of `sluice profile` as an HTML page: sparsity, frequency, overlap, co-activation.
#ifndef SLUICE_TOOLS_PROFILE_PAGE_H_
#define SLUICE_TOOLS_PROFILE_PAGE_H_

#include <string>

#include "tools/profile_report.h"

namespace sluice {

std::string ProfilePage(const ProfileReport& report);

}  // namespace sluice

#endif  // SLUICE_TOOLS_PROFILE_PAGE_H_
