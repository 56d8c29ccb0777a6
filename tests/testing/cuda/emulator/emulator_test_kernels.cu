#include <cuda_bf16.h>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/cluster.cuh"
#include "kernels/cuda/device/cluster_launch.cuh"
#include "kernels/cuda/device/early_start.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tensor_core.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "tests/testing/cuda/emulator/emulator_test_kernels.h"

namespace stagecoach::testing::cuda {
namespace {

using kernels::Launch;
using kernels::LaunchEarly;
using kernels::SharedMemory;

constexpr unsigned kAll = 0xffffffffu;

__device__ unsigned ThreadOfGrid() { return blockIdx.x * blockDim.x + threadIdx.x; }

__device__ float WarpSum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(kAll, value, distance);
  }
  return value;
}

template <bool kBarrier>
__global__ void __launch_bounds__(1024) Sum(const float* __restrict__ x, unsigned n, float* sums) {
  float* const parts = SharedMemory<float>();
  float part = 0;
  for (unsigned i = threadIdx.x; i < n; i += blockDim.x) part += __ldg(x + blockIdx.x * n + i);
  part = WarpSum(part);
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = part;
  if (kBarrier) __syncthreads();
  float sum = 0;
  for (unsigned warp = 0; warp < blockDim.x / 32; ++warp) sum += parts[warp];
  sums[ThreadOfGrid()] = sum;
}

__global__ void Cluster(unsigned cluster_blocks, ClusterFault fault, float* results) {
  float* const own = SharedMemory<float>() + threadIdx.x;
  const unsigned rank = blockIdx.x % cluster_blocks;
  *own = static_cast<float>(64 * rank + threadIdx.x);
  if (fault == ClusterFault::kOneThreadEndsBefore && threadIdx.x == 7) return;
  if (fault != ClusterFault::kNoBarrierBefore) kernels::ClusterBarrier();
  const bool is_outside = fault == ClusterFault::kReadsOutside;
  results[ThreadOfGrid()] =
      kernels::LoadFromBlock(is_outside ? own + 64 : own, (rank + 1) % cluster_blocks);
  if (fault != ClusterFault::kNoBarrierAfter) kernels::ClusterBarrier();
}

template <bool kBarrier>
__global__ void Reverse(const float* x, float* reversed) {
  float* const shared = SharedMemory<float>();
  shared[threadIdx.x] = x[threadIdx.x];
  if (kBarrier) __syncwarp();
  reversed[threadIdx.x] = shared[31 - threadIdx.x];
}

__global__ void Indices(uint3* indices) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  const unsigned place = block * blockDim.x * blockDim.y * blockDim.z + thread;
  indices[2 * place] = threadIdx;
  indices[2 * place + 1] = blockIdx;
}

__global__ void Exchanges(int* results) {
  const int value = static_cast<int>(1000 + threadIdx.x);
  int* const own = results + threadIdx.x * kExchanges;
  own[0] = __shfl_sync(kAll, value, 5);
  own[1] = __shfl_xor_sync(kAll, value, 3);
  own[2] = __shfl_down_sync(kAll, value, 4);
  own[3] = __shfl_up_sync(kAll, value, 4);
  own[4] = __shfl_sync(kAll, value, 5, 8);
  own[5] = __shfl_xor_sync(kAll, value, 3, 8);
  own[6] = __shfl_down_sync(kAll, value, 4, 8);
  own[7] = __shfl_up_sync(kAll, value, 4, 8);
}

__global__ void Votes(unsigned limit, unsigned* results) {
  const int below = threadIdx.x < limit ? 1 : 0;
  unsigned* const own = results + threadIdx.x * kVotes;
  own[0] = __ballot_sync(kAll, below);
  own[1] = static_cast<unsigned>(__any_sync(kAll, below) != 0);
  own[2] = static_cast<unsigned>(__all_sync(kAll, below) != 0);
  own[3] = static_cast<unsigned>(__syncthreads_count(below));
  own[4] = static_cast<unsigned>(__syncthreads_or(below) != 0);
  own[5] = static_cast<unsigned>(__syncthreads_and(below) != 0);
}

__global__ void Count(int* count, int* old) { old[ThreadOfGrid()] = atomicAdd(count, 1); }

__global__ void Uninitialized(float* found) {
  found[threadIdx.x] = SharedMemory<float>()[threadIdx.x];
}

__global__ void ReadShared(int index, int* value) { *value = SharedMemory<char>()[index]; }
__global__ void WriteShared(int index) { SharedMemory<char>()[index] = 1; }
__global__ void Read(const float* x, int index, float* value) { *value = x[index]; }
__global__ void Write(float* x, int index) { x[index] = 1; }

__global__ void Twice(float* x, int n) {
  const int i = static_cast<int>(ThreadOfGrid());
  if (i >= n) return;
  x[i] = 2 * __bfloat162float(__float2bfloat16_rn(x[i]));
}

constexpr int kSide = 16;  // of a matrix

// Returns the address of the calling lane's row, for four matrices of 8 x 8 that form one of 16 x
// 16: those of its first columns come first, or those of its first rows.
__device__ const uint16_t* RowOfLane(const uint16_t* matrix, bool columns_first) {
  const unsigned lane = threadIdx.x % 32, first = lane / 8 % 2 * 8, second = lane / 16 * 8;
  const unsigned row = columns_first ? first : second, column = columns_first ? second : first;
  return matrix + (row + lane % 8) * kSide + column;
}

__global__ void TileProduct(const uint16_t* a, const uint16_t* b, int rows, bool transposed,
                            ProductFault fault, float* c) {
  uint16_t* const shared = SharedMemory<uint16_t>();
  const unsigned warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool reads = warp == 1 || static_cast<int>(lane / 2) < rows;
  kernels::CopyAsync(shared + threadIdx.x * 8, (warp == 0 ? a : b) + lane * 8, reads);
  kernels::CommitCopies();
  if (fault != ProductFault::kNoWait) kernels::WaitForCopies<0>();
  if (fault != ProductFault::kNoBarrier) __syncthreads();

  uint32_t a_words[4], b_words[4];
  kernels::LoadMatrices(RowOfLane(shared, true), a_words);
  if (fault == ProductFault::kOtherLayout) std::swap(a_words[1], a_words[2]);
  const uint16_t* const b_shared = shared + kSide * kSide;
  if (transposed) {
    kernels::LoadMatrices(RowOfLane(b_shared, false), b_words);
  } else {
    kernels::LoadMatricesTransposed(RowOfLane(b_shared, true), b_words);
  }
  for (unsigned half = 0; half < 2; ++half) {
    float sums[4] = {};
    kernels::MultiplyTiles(sums, a_words, b_words[2 * half], b_words[2 * half + 1]);
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = lane / 4 + i / 2 * 8, column = 8 * half + 2 * (lane % 4) + i % 2;
      c[(warp * kSide + row) * kSide + column] = sums[i];
    }
  }
  kernels::WaitForCopies<0>();
}

constexpr int kPanelRows = 64;
constexpr unsigned kPanelBytes = kPanelRows * kernels::kPanelRowBytes;

__device__ void StoreSums(const float (&sums)[8][4], float* c) {
  const unsigned lane = threadIdx.x % 32;
  for (unsigned n = 0; n < 8; ++n) {
    for (unsigned i = 0; i < 4; ++i) {
      const unsigned row = threadIdx.x / 32 * 16 + lane / 4 + i / 2 * 8;
      c[row * kPanelRows + 8 * n + lane % 4 * 2 + i % 2] = sums[n][i];
    }
  }
}

__global__ void WarpgroupProduct(const uint16_t* a, const uint16_t* b, WarpgroupFault fault,
                                 float* c) {
  unsigned char* const shared = SharedMemory<unsigned char>();
  unsigned char* const panels =
      shared + (0U - kernels::SharedAddress(shared)) % kernels::kPanelAlignment;
  for (unsigned place = threadIdx.x; place < kPanelRows * 8; place += kernels::kWarpgroup) {
    const unsigned row = place / 8, chunk = place % 8;
    unsigned char* const to = panels + row * kernels::kPanelRowBytes + (chunk ^ row % 8) * 16;
    kernels::CopyAsync(to, a + place * 8, true);
    kernels::CopyAsync(to + kPanelBytes, b + place * 8, true);
  }
  kernels::CommitCopies();
  kernels::WaitForCopies<0>();
  if (fault != WarpgroupFault::kIsNotShown) kernels::ShowToProducts();
  __syncthreads();
  uint64_t a_factor = kernels::FactorAt(kernels::SharedAddress(panels), kPanelBytes);
  uint64_t b_factor = kernels::FactorAt(kernels::SharedAddress(panels + kPanelBytes), kPanelBytes);
  if (fault == WarpgroupFault::kOtherStride) b_factor -= uint64_t{1} << 32;
  if (fault == WarpgroupFault::kOneWarpDoesOther && threadIdx.x / 32 == 2) a_factor = b_factor;
  float sums[8][4];
  if (fault != WarpgroupFault::kIsNotBegun) kernels::BeginProducts();
  for (int step = 0; step < 4; ++step) {
    kernels::StartProduct<false>(sums, a_factor + kernels::ColumnsAt<kPanelRows>(step),
                                 b_factor + kernels::ColumnsAt<kPanelRows>(step), step > 0);
  }
  kernels::CommitProducts();
  if (fault == WarpgroupFault::kReadsEarly) StoreSums(sums, c);
  if (fault == WarpgroupFault::kFactorChanges && threadIdx.x == 0) ++panels[kPanelBytes];
  if (fault == WarpgroupFault::kResultChanges && threadIdx.x == 0) sums[0][0] = 0;
  if (fault != WarpgroupFault::kIsNotAwaited) kernels::WaitForProducts<0>();
  if (fault != WarpgroupFault::kReadsEarly) StoreSums(sums, c);
}

__device__ void Multiply(bool in_first_branch) {
  float c[4] = {};
  const uint32_t a[4] = {};
  if (in_first_branch) {
    kernels::MultiplyTiles(c, a, 0, 0);
  } else {
    kernels::MultiplyTiles(c, a, 0, 0);
  }
}

// Copies 16 bytes from `source` to shared memory, making the mistake.
__device__ void CopyWrongly(Mistake mistake, int* source) {
  if (threadIdx.x != 0) return;
  int* const shared = SharedMemory<int>();
  kernels::CopyAsync(shared, source, true);
  kernels::CommitCopies();
  if (mistake == Mistake::kCopySourceChanges) ++*source;
  if (mistake == Mistake::kCopyDestinationChanges) ++*shared;
  if (mistake != Mistake::kCopyIsNotAwaited) kernels::WaitForCopies<0>();
}

__device__ int Wrong(Mistake mistake, int* memory) {
  const int thread = static_cast<int>(threadIdx.x);
  const bool first_half = threadIdx.x < 32;
  switch (mistake) {
    case Mistake::kBarrierInOneBranch:
      if (first_half) __syncthreads();
      return 0;
    case Mistake::kBarriersInTwoBranches:
      if (first_half) {
        __syncthreads();
      } else {
        __syncthreads();
      }
      return 0;
    case Mistake::kThreadEndsBeforeBarrier:
      if (thread == 63) return 0;
      __syncthreads();
      return 0;
    case Mistake::kLaneOutsideItsMask:
      return __shfl_sync(0xffff0000u, thread, 16);
    case Mistake::kSourceOutsideMask:
      return first_half && thread < 16 ? __shfl_sync(0x0000ffffu, thread, 20) : 0;
    case Mistake::kMasksThatDiffer:
      if (thread == 0) __syncwarp(0x3);
      if (thread == 1) __syncwarp(0x7);
      return 0;
    case Mistake::kOperationsThatDiffer:
      return thread % 2 == 0 ? __shfl_sync(kAll, thread, 0) : __any_sync(kAll, 1);
    case Mistake::kPartOfAWarpMultiplies:
      if (thread != 7) Multiply(true);
      return 0;
    case Mistake::kProductsAtTwoLines:
      Multiply(thread < 16);
      return 0;
    case Mistake::kUnalignedMatrix:
    case Mistake::kMatrixOutsideShared: {
      uint32_t words[4];
      const unsigned row = mistake == Mistake::kUnalignedMatrix ? 2 : threadIdx.x % 32 * 16;
      kernels::LoadMatrices(SharedMemory<char>() + row, words);
      return 0;
    }
    case Mistake::kStartIsNotAwaited:
      if (thread != 7) kernels::WaitForEarlierKernels();
      return 0;
    case Mistake::kCopyIsNotAwaited:
    case Mistake::kCopySourceChanges:
    case Mistake::kCopyDestinationChanges:
      CopyWrongly(mistake, memory);
      return 0;
  }
  return 0;
}

__global__ void MakeMistake(Mistake mistake, int* result) { *result = Wrong(mistake, result); }

__global__ void Nothing() {}

constexpr dim3 kOne(1);
constexpr size_t kMistakeBytes = 31 * 16;  // one row less than four matrices have

}  // namespace

cudaError_t LaunchSum(cudaStream_t stream, int blocks, int threads, const float* x, int n,
                      float* sums, bool barrier) {
  return Launch(barrier ? Sum<true> : Sum<false>, dim3(blocks), dim3(threads),
                static_cast<size_t>(threads / 32) * sizeof(float), stream, x, n, sums);
}

cudaError_t LaunchCluster(cudaStream_t stream, unsigned blocks, unsigned cluster_blocks,
                          ClusterFault fault, float* results) {
  return kernels::LaunchClusters(cluster_blocks, /*starts_early=*/false, Cluster, dim3(blocks),
                                 dim3(64), 64 * sizeof(float), stream, cluster_blocks, fault,
                                 results);
}

cudaError_t LaunchReverse(cudaStream_t stream, const float* x, float* reversed, bool barrier) {
  return Launch(barrier ? Reverse<true> : Reverse<false>, kOne, dim3(32), 32 * sizeof(float),
                stream, x, reversed);
}

cudaError_t LaunchIndices(cudaStream_t stream, dim3 blocks, dim3 threads, uint3* indices) {
  return Launch(Indices, blocks, threads, 0, stream, indices);
}

cudaError_t LaunchExchanges(cudaStream_t stream, int threads, int* results) {
  return Launch(Exchanges, kOne, dim3(threads), 0, stream, results);
}

cudaError_t LaunchVotes(cudaStream_t stream, int threads, int limit, unsigned* results) {
  return Launch(Votes, kOne, dim3(threads), 0, stream, limit, results);
}

cudaError_t LaunchCount(cudaStream_t stream, int threads, int* count, int* old) {
  return Launch(Count, kOne, dim3(threads), 0, stream, count, old);
}

cudaError_t LaunchUninitialized(cudaStream_t stream, int threads, float* found) {
  return Launch(Uninitialized, kOne, dim3(threads), static_cast<size_t>(threads) * sizeof(float),
                stream, found);
}

cudaError_t LaunchReadShared(cudaStream_t stream, int bytes, int index, int* value) {
  return Launch(ReadShared, kOne, kOne, static_cast<size_t>(bytes), stream, index, value);
}

cudaError_t LaunchWriteShared(cudaStream_t stream, int bytes, int index) {
  return Launch(WriteShared, kOne, kOne, static_cast<size_t>(bytes), stream, index);
}

cudaError_t LaunchRead(cudaStream_t stream, const float* x, int index, float* value) {
  return Launch(Read, kOne, kOne, 0, stream, x, index, value);
}

cudaError_t LaunchWrite(cudaStream_t stream, float* x, int index) {
  return Launch(Write, kOne, kOne, 0, stream, x, index);
}

cudaError_t LaunchTwice(cudaStream_t stream, float* x, int n) {
  return Launch(Twice, dim3((n + 63) / 64), dim3(64), 0, stream, x, n);
}

cudaError_t LaunchTileProduct(cudaStream_t stream, const uint16_t* a, const uint16_t* b, int rows,
                              bool transposed, ProductFault fault, float* c) {
  return Launch(TileProduct, kOne, dim3(64), 2 * kSide * kSide * sizeof(uint16_t), stream, a, b,
                rows, transposed, fault, c);
}

cudaError_t LaunchWarpgroupProduct(cudaStream_t stream, const uint16_t* a, const uint16_t* b,
                                   WarpgroupFault fault, float* c) {
  return Launch(WarpgroupProduct, kOne, dim3(kernels::kWarpgroup),
                kernels::kPanelAlignment + 2 * kPanelBytes, stream, a, b, fault, c);
}

cudaError_t LaunchMistake(cudaStream_t stream, Mistake mistake, int* result) {
  return LaunchEarly(mistake == Mistake::kStartIsNotAwaited, MakeMistake, kOne, dim3(64),
                     kMistakeBytes, stream, mistake, result);
}

cudaError_t LaunchNothing(cudaStream_t stream, dim3 blocks, dim3 threads, size_t shared_bytes) {
  return Launch(Nothing, blocks, threads, shared_bytes, stream);
}

cudaError_t LaunchNothingDirectly(cudaStream_t stream, size_t shared_bytes) {
  cudaLaunchConfig_t config = {};
  config.gridDim = config.blockDim = kOne;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, Nothing);
}

}  // namespace stagecoach::testing::cuda
