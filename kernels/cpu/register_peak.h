#ifndef STAGECOACH_KERNELS_CPU_REGISTER_PEAK_H_
#define STAGECOACH_KERNELS_CPU_REGISTER_PEAK_H_

namespace stagecoach::kernels {

// The most float32 operations a second that `threads` threads of this machine do at once:
// independent fused multiply-adds on registers alone, as wide as oneDNN may use, best of a few
// runs of some hundred milliseconds. A multiply-add counts 2. What products of matrices can come
// near to, and not exceed.
double RegisterPeakFlops(int threads);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_REGISTER_PEAK_H_
