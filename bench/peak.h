#ifndef STAGECOACH_BENCH_PEAK_H_
#define STAGECOACH_BENCH_PEAK_H_

namespace stagecoach::bench {

// The most float32 operations per second that `threads` threads of this machine do at once:
// independent fused multiply-adds on registers alone, best of a few runs. A multiply-add counts 2.
double PeakFlopsPerSecond(int threads);

}  // namespace stagecoach::bench

#endif  // STAGECOACH_BENCH_PEAK_H_
