#include "tests/cost_bound.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdlib>
#include <ctime>
#include <fstream>
#include <string>

#ifdef SLUICE_SANITIZED
#include <sanitizer/allocator_interface.h>
#endif

namespace sluice {
namespace {

long StatusKib(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::atol(line.c_str() + field.size() + 1);
  }
  ADD_FAILURE() << "no " << field << " in /proc/self/status";
  return 0;
}

// Memory that was freed earlier would be used again without the process growing.
long ReleaseFreedMemory() {
#ifdef SLUICE_SANITIZED
  __sanitizer_purge_allocator();
#endif
  malloc_trim(0);
  std::ofstream clear("/proc/self/clear_refs");
  clear << 5 << std::flush;  // the peak begins anew: proc(5)
  return StatusKib(clear ? "VmRSS" : "VmHWM");
}

}  // namespace

CostBound::CostBound() : resident_kib_(ReleaseFreedMemory()), begin_(std::clock()) {}

CostBound::~CostBound() {
  EXPECT_LT(std::clock() - begin_, CLOCKS_PER_SEC);
  EXPECT_LT(StatusKib("VmHWM") - resident_kib_, 64 * 1024);
}

}  // namespace sluice
