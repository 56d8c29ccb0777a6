#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUDNN_FAULTS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUDNN_FAULTS_H_

#include <cstdint>
#include <map>
#include <set>

// How a test makes the stand-in of cuDNN behave as the real library may, but the stand-in by itself
// does not. Engines are named by their global index: forward of attention has 2 and 1, backward 6
// and 7, and 8, which says that it does not give the same bits every time; those of convolutions
// are in cudnn_convolution.cc.
namespace stagecoach::testing::cuda {

struct CudnnFaults {
  std::set<int64_t> uncompiled;  // engines for which no plan can be made
  std::set<int64_t> failing;     // whose plans do not run
  std::set<int64_t> greedy;      // whose plans want a gigabyte of workspace
  // Time of the GPU's clock that a run takes beyond the time it takes here; may be negative.
  std::map<int64_t, int64_t> extra_ns;
};

// Until the next Reset, for all calls that follow. Thread-safe.
void SetCudnnFaults(CudnnFaults faults);

// ---- For the stand-in.
CudnnFaults cudnn_faults();

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUDNN_FAULTS_H_
