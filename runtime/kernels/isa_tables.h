// What dispatch.cc and the files of one ISA each share, internal to this folder. Call a function
// below only on a machine that has the features it names.
//
// Rules for a file that is compiled for a newer CPU than the rest of the program: it may not emit a
// function that other files could be linked to. So it includes only this header, row_loops.h, the
// intrinsics and plain C headers, calls no inline function or template of the library or of
// kernels.h, and keeps its own in an unnamed namespace. tests/isa_symbols_test.cmake checks this.
#ifndef SLUICE_RUNTIME_KERNELS_ISA_TABLES_H_
#define SLUICE_RUNTIME_KERNELS_ISA_TABLES_H_

#include "runtime/kernels/kernels.h"

namespace sluice {

const KernelTable& Avx2Kernels();        // avx2, f16c
const KernelTable& Avx512VnniKernels();  // avx512f, avx512bw, avx512dq, avx512vl, avx512vnni

}  // namespace sluice

#endif  // SLUICE_RUNTIME_KERNELS_ISA_TABLES_H_
