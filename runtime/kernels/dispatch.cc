#include <array>

#include "runtime/kernels/isa_tables.h"
#include "runtime/kernels/kernels.h"

#ifdef SLUICE_X86_KERNELS
#include <cpuid.h>
#endif

namespace sluice {
namespace {

#ifdef SLUICE_X86_KERNELS
// clang 14 has no __builtin_cpu_supports("f16c"). Whether the system saves the AVX registers, which
// F16C needs too, is part of __builtin_cpu_supports("avx2").
bool HasF16c() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

bool HasAvx2() { return __builtin_cpu_supports("avx2") && HasF16c(); }

bool HasAvx512Vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif

struct TableList {
  std::array<const KernelTable*, 3> tables = {};
  size_t count = 0;

  void Add(const KernelTable& table) { tables[count++] = &table; }
};

TableList FindAvailable() {
  TableList list;
  list.Add(ScalarKernels());
#ifdef SLUICE_X86_KERNELS
  if (HasAvx2()) list.Add(Avx2Kernels());
  if (HasAvx512Vnni()) list.Add(Avx512VnniKernels());
#endif
  return list;
}

}  // namespace

std::span<const KernelTable* const> AvailableKernels() {
  static const TableList list = FindAvailable();
  return {list.tables.data(), list.count};
}

const KernelTable& BestKernels() { return *AvailableKernels().back(); }

const KernelTable* FindKernels(std::string_view name) {
  for (const KernelTable* table : AvailableKernels()) {
    if (table->name == name) return table;
  }
  return nullptr;
}

}  // namespace sluice
