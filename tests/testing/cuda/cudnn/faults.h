#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUDNN_FAULTS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUDNN_FAULTS_H_

#include <cstdint>
#include <map>
#include <set>

// Faults with which a test makes the stand-in of cuDNN behave as the real library may, but the
// stand-in by itself does not. Engines are named by their global index: forward of attention has 2
// and 1; backward has 6 and 7, and 8, which is marked as not deterministic; those of convolutions
// are in cudnn_convolution.cc.
namespace stagecoach::testing::cuda {

struct CudnnFaults {
  std::set<int64_t> uncompiled;  // engines for which no plan can be made
  std::set<int64_t> failing;     // engines whose plans do not run
  std::set<int64_t> greedy;      // engines whose plans want a gigabyte of workspace
  // Time of the GPU's clock that a run takes in addition to its time here; may be negative.
  std::map<int64_t, int64_t> extra_ns;
};

// Sets the faults of all following calls, until the next Reset. Thread-safe.
void SetCudnnFaults(CudnnFaults faults);

// ---- For the stand-in.
CudnnFaults cudnn_faults();

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUDNN_FAULTS_H_
