#ifndef STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_CLUSTER_H_
#define STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_CLUSTER_H_

#include "tests/testing/cuda/emulator/block.h"

namespace stagecoach::testing::cuda {

// Clusters of blocks (kernels/cuda/device/cluster.cuh). All threads of the cluster must come to the
// barrier; none may have ended. Returns where another block has what is at `own` in the shared
// memory of the calling thread's block; none of its threads may have ended.
inline constexpr int kMaxClusterBlocks = 8;
void ClusterBarrier(Location location);
const void* SharedOfBlock(const void* own, unsigned rank, Location location);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_CLUSTER_H_
