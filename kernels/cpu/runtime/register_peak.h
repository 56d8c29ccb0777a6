#ifndef STAGECOACH_KERNELS_CPU_RUNTIME_REGISTER_PEAK_H_
#define STAGECOACH_KERNELS_CPU_RUNTIME_REGISTER_PEAK_H_

#include "kernels/device.h"

namespace stagecoach::kernels {

// Measures the most operations per second that `threads` threads of this machine do at once in
// products of float32 or bfloat16: independent multiply-adds on registers alone, as wide as oneDNN
// may use; it takes the best of as many runs as it takes for a few to agree. A multiply-add counts
// as two operations. Processors without an instruction for bfloat16 are as fast as in float32; for
// those with AMX the result is unknown: 0. Products of matrices can approach this rate, but not
// exceed it.
double RegisterPeakFlops(int threads, Precision precision = Precision::kFloat32);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_RUNTIME_REGISTER_PEAK_H_
