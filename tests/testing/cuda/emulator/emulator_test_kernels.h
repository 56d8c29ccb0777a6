#ifndef STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_EMULATOR_TEST_KERNELS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_EMULATOR_TEST_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

// Kernels that the emulator's tests run: correct ones, and wrong ones that it must distinguish.
// Each is launched with the given block (and grid), in device memory.
namespace stagecoach::testing::cuda {

// Makes every thread of a block store the sum of the block's n floats, found through shared memory;
// with or without the barrier between writing the parts and reading them.
cudaError_t LaunchSum(cudaStream_t stream, int blocks, int threads, const float* x, int n,
                      float* sums, bool barrier);
// Reverses 32 floats in a warp's shared memory, with or without the barrier that this needs.
cudaError_t LaunchReverse(cudaStream_t stream, const float* x, float* reversed, bool barrier);
// Stores per thread: {x, y, z of the thread, x, y, z of the block}, in the order of the grid.
cudaError_t LaunchIndices(cudaStream_t stream, dim3 blocks, dim3 threads, uint3* indices);
// The results of exchanges per thread: shuffle from lane 5, xor 3, down 4, up 4, each within the
// whole warp and then within groups of 8.
inline constexpr int kExchanges = 8;
cudaError_t LaunchExchanges(cudaStream_t stream, int threads, int* results);
// The results of votes per thread: ballot, any, all, and the block's count, or, and, of whether the
// thread's number is below `limit`.
inline constexpr int kVotes = 6;
cudaError_t LaunchVotes(cudaStream_t stream, int threads, int limit, unsigned* results);
// Makes every thread add 1 to *count, and store the previous value in old[thread].
cudaError_t LaunchCount(cudaStream_t stream, int threads, int* count, int* old);
// Makes thread i store SharedMemory<float>()[i] as it finds it.
cudaError_t LaunchUninitialized(cudaStream_t stream, int threads, float* found);
// Reads (and stores in *value) or writes SharedMemory<char>()[index], with `bytes` of shared memory
// and one thread.
cudaError_t LaunchReadShared(cudaStream_t stream, int bytes, int index, int* value);
cudaError_t LaunchWriteShared(cudaStream_t stream, int bytes, int index);
// Runs one thread: *value = x[index]; or x[index] = 1.
cudaError_t LaunchRead(cudaStream_t stream, const float* x, int index, float* value);
cudaError_t LaunchWrite(cudaStream_t stream, float* x, int index);
// Computes x[i] = 2 x[i] through bfloat16.
cudaError_t LaunchTwice(cudaStream_t stream, float* x, int n);

// Computes c = a b, of 16 x 16 bfloat16 each, on tensor cores: two warps bring a and b to shared
// memory by asynchronous copies, and each stores a c of its own. `transposed`: the rows of `b` are
// the columns of the matrix. Only the first `rows` of a are read, the others are 0.
enum class ProductFault : uint8_t {
  kNone,
  kNoWait,       // for the copies
  kNoBarrier,    // between the wait and the loads
  kOtherLayout,  // two words of a are exchanged
};
cudaError_t LaunchTileProduct(cudaStream_t stream, const uint16_t* a, const uint16_t* b, int rows,
                              bool transposed, ProductFault fault, float* c);

// Computes c = a b^T, of 64 x 64 bfloat16 each, by a warpgroup.
enum class WarpgroupFault : uint8_t {
  kNone,
  kReadsEarly,        // c is read before the wait
  kOtherStride,       // of b's descriptor
  kIsNotBegun,        // BeginProducts is missing
  kIsNotShown,        // ShowToProducts is missing
  kIsNotAwaited,      // ends without a wait
  kFactorChanges,     // b changes before the wait
  kResultChanges,     // c changes before the wait
  kOneWarpDoesOther,  // one warp has another descriptor
};
cudaError_t LaunchWarpgroupProduct(cudaStream_t stream, const uint16_t* a, const uint16_t* b,
                                   WarpgroupFault fault, float* c);

// Makes thread t of each block of a cluster store what thread t of the next block has put into its
// shared memory: 64 times the number of the cluster's block, plus t. There are 64 threads.
enum class ClusterFault : uint8_t {
  kNone,
  kNoBarrierBefore,  // the reads
  kNoBarrierAfter,
  kReadsOutside,         // of all blocks' shared memory
  kOneThreadEndsBefore,  // the first barrier
};
cudaError_t LaunchCluster(cudaStream_t stream, unsigned blocks, unsigned cluster_blocks,
                          ClusterFault fault, float* results);

// Mistakes of a block of 64 threads.
enum class Mistake : uint8_t {
  kBarrierInOneBranch,       // half of the threads come to __syncthreads, the others do not
  kBarriersInTwoBranches,    // each half comes to another __syncthreads
  kThreadEndsBeforeBarrier,  // one thread returns early
  kLaneOutsideItsMask,       // calls __shfl_sync with a mask that does not name it
  kSourceOutsideMask,        // reads the value of a lane that does not participate
  kMasksThatDiffer,          // two lanes wait for each other with different masks
  kOperationsThatDiffer,     // lanes meet in a ballot and in a shuffle
  kPartOfAWarpMultiplies,    // one lane has ended before a product of tiles
  kProductsAtTwoLines,       // each half of a warp comes to another product
  kUnalignedMatrix,          // loads rows at addresses that are not multiples of 16
  kMatrixOutsideShared,      // loads rows of which the last is beyond shared memory
  kStartIsNotAwaited,        // one thread of a kernel that may start early does not wait
  kCopyIsNotAwaited,         // ends before an asynchronous copy has arrived
  kCopySourceChanges,        // writes to the source of a copy, or to its destination, before that
  kCopyDestinationChanges,
};
cudaError_t LaunchMistake(cudaStream_t stream, Mistake mistake, int* result);

// Launches an empty kernel with this configuration.
cudaError_t LaunchNothing(cudaStream_t stream, dim3 blocks, dim3 threads, size_t shared_bytes);
// Does the same without requesting more than the default shared memory.
cudaError_t LaunchNothingDirectly(cudaStream_t stream, size_t shared_bytes);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_EMULATOR_TEST_KERNELS_H_
