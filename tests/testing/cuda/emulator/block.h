#ifndef STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_BLOCK_H_
#define STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_BLOCK_H_

#include <cuda_runtime_api.h>

#include <cstdint>
#include <experimental/source_location>  // Clang 14 has no other
#include <functional>

// The functions that the code of an emulated kernel calls: emulator.h defines CUDA's names for
// them. The calling thread of a block is a fiber; whatever makes it wait switches to another one.
// What CUDA leaves undefined aborts here, with the kernel's line, block and thread.
namespace stagecoach::testing::cuda {

using Location = std::experimental::source_location;

// Implements __syncthreads. All threads of the block must come to the same line; none may have
// ended. Returns for how many of them `predicate` holds.
int BlockBarrier(bool predicate, Location location);

// An operation that lanes of a warp do together. All lanes that `mask` names, unless they have
// ended, must come with this mask and this operation; the caller must be one of them.
enum class WarpOperation : uint8_t { kBarrier, kShuffle, kBallot, kTogether };
// kShuffle returns the value of lane `source`, which must be in the mask and alive; kBallot returns
// one bit per lane whose value is not 0.
uint64_t WarpExchange(WarpOperation operation, unsigned mask, uint64_t value, unsigned source,
                      Location location);
// Work that all 32 lanes of a warp do as one, at the same line: `work` gets the operands of each
// lane, in their order, when the last lane has come.
using WarpWork = void (*)(void* const* operands);
void WarpTogether(WarpWork work, void* operands, Location location);
// Returns the calling thread's lane.
unsigned Lane();

// Returns shared memory that is aligned to 16 bytes and no more, poisoned before every block, with
// red zones on both sides.
unsigned char* SharedMemoryOfBlock();

// Tensor cores (kernels/cuda/device/tensor_core.cuh). The layouts of fragments are those of PTX's
// mma.sync.m16n8k16 and ldmatrix.x4. Products are exact; each of the sums takes its 16 products in
// order, and rounds to float32 after each.
void MultiplyTiles(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                   Location location);
void LoadMatrices(const void* row, bool transposed, uint32_t (&matrices)[4], Location location);

// Asynchronous copies of 16 bytes into shared memory (kernels/cuda/device/async_copy.cuh). Until
// the thread waits for its group the destination is poisoned. Neither it nor the source may change
// before that, and no thread may end before its copies have arrived.
void StartCopy(void* to, const void* from, bool reads, Location location);
void CommitCopies();
void WaitForCopies(size_t groups, Location location);

// Asynchronous products of warpgroups (kernels/cuda/device/warpgroup.cuh), as PTX's wgmma computes
// them from descriptors. Sums are like those of MultiplyTiles. Until the wait for their group, c is
// poisoned; neither it nor what is read may change before, and no thread may end. Shared memory
// must have been shown to products by the thread whose copies it has; other writes are not tracked.
struct ProductOperands {
  float* c;
  const uint32_t* a_words;  // null: a descriptor
  uint64_t a, b;            // descriptors
  unsigned columns;
  bool sums_over_rows, adds;
};
// Returns an address as in descriptors.
uint32_t SharedAddress(const void* address);
void ShowToProducts();
void BeginProducts(Location location);
void StartProduct(const ProductOperands& operands, Location location);
void CommitProducts(Location location);
void WaitForProducts(size_t groups, Location location);

// Each thread of a kernel that may start early calls this before it ends
// (kernels/cuda/device/early_start.cuh).
void WaitForEarlierKernels();

// Puts a kernel into the stream's order: `thread` is run once for every thread of every block. The
// errors are CUDA's. `kernel` is its address, which identifies it in cudaFuncSetAttribute.
cudaError_t LaunchThreads(const cudaLaunchConfig_t& config, const void* kernel,
                          std::function<void()> thread);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_BLOCK_H_
