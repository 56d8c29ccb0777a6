#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_

// The emulator's version: it is found before the file of this name that nvcc sees, and has the same
// contract.
#include "tests/testing/cuda/emulator/block.h"

namespace stagecoach::kernels {

inline void CopyAsync(void* to, const void* from, bool reads,
                      testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::StartCopy(to, from, reads, location);
}

inline void CopyLineAsync(void* to, const void* from, bool reads,
                          testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::StartCopy(to, from, reads, location);
}

inline void CommitCopies() { testing::cuda::CommitCopies(); }

template <int kGroups>
void WaitForCopies(testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::WaitForCopies(kGroups, location);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_ASYNC_COPY_CUH_
