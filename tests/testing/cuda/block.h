#ifndef STAGECOACH_TESTS_TESTING_CUDA_BLOCK_H_
#define STAGECOACH_TESTS_TESTING_CUDA_BLOCK_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <experimental/source_location>  // Clang 14 has no other
#include <functional>

// What the code of an emulated kernel calls: emulator.h gives it the names that CUDA has for it.
// The calling thread of a block is a fiber; whatever makes it wait switches to another one. What
// CUDA leaves undefined aborts here, with the kernel's line, block and thread.
namespace stagecoach::testing::cuda {

using Location = std::experimental::source_location;

// __syncthreads. All threads of the block must come, to the same line; none may have ended.
// Returns for how many of them `predicate` holds.
int BlockBarrier(bool predicate, Location location);

// What lanes of a warp do together. All lanes that `mask` names, unless they have ended, must come
// with this mask and this operation; the caller must be one of them.
enum class WarpOperation : uint8_t { kBarrier, kShuffle, kBallot };
// kShuffle returns the value that lane `source` came with, which must be in the mask and alive;
// kBallot one bit per lane whose value is not 0.
uint64_t WarpExchange(WarpOperation operation, unsigned mask, uint64_t value, unsigned source,
                      Location location);
// The calling thread's lane.
unsigned Lane();

// Aligned to 16 bytes and no more, poisoned before every block, with red zones on both sides.
unsigned char* SharedMemoryOfBlock();

// Puts a kernel into the stream's order: `thread` is run once for every thread of every block. The
// errors are CUDA's. `kernel` is its address, which stands for it in cudaFuncSetAttribute.
cudaError_t LaunchThreads(const cudaLaunchConfig_t& config, const void* kernel,
                          std::function<void()> thread);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_BLOCK_H_
