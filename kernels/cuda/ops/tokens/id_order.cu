#include <cuda_runtime.h>

#include <bit>
#include <utility>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/ops/tokens/id_order_kernels.h"

// A radix sort, a digit of eight bits at a time from the lowest on. Each pass is stable, so that
// the last one leaves the ids in order, and equal ones in their original order. A pass takes two
// kernels: blocks count the digits of their tiles, and then put each id after all that have a lower
// digit, or the same one in an earlier tile, warp or place. 65,536 ids of a vocabulary of 50,257
// take two passes of 32 blocks.
namespace stagecoach::kernels {
namespace {

constexpr int kDigitBits = 8;
constexpr int kDigits = 1 << kDigitBits;
constexpr int kThreads = kDigits;  // one for each digit, in counting digits
constexpr int kWarps = kThreads / kWarp;
constexpr int kPerThread = 8;
constexpr int kPerWarp = kPerThread * kWarp;
constexpr int kTile = kPerThread * kThreads;

int64_t TilesOf(int64_t count) { return (count + kTile - 1) / kTile; }

struct Pass {
  int64_t count, vocabulary;
  const int32_t* ids;
  const int32_t* from;  // origins in the order of the previous pass; null: the original order
  int32_t* to;
  int32_t* sorted_ids;  // null except in the last pass
  int32_t* counts;      // of each tile and digit
  int64_t tiles;
  int shift;
};

struct Item {
  int origin, id;
};

__device__ Item ItemAt(const Pass& pass, int64_t place) {
  const int origin = pass.from == nullptr ? static_cast<int>(place) : pass.from[place];
  const int id = pass.ids[origin];
  return {origin, id >= 0 && id < pass.vocabulary ? id : static_cast<int>(pass.vocabulary)};
}

__device__ int DigitOf(const Pass& pass, int id) { return id >> pass.shift & (kDigits - 1); }

__global__ void __launch_bounds__(kThreads) CountDigitsKernel(const Pass pass) {
  int* const counts = SharedMemory<int>();
  counts[threadIdx.x] = 0;
  __syncthreads();
  for (int i = 0; i < kPerThread; ++i) {
    const int64_t place = static_cast<int64_t>(blockIdx.x) * kTile + i * kThreads + threadIdx.x;
    // Sums of integers do not depend on the order.
    if (place < pass.count) atomicAdd(&counts[DigitOf(pass, ItemAt(pass, place).id)], 1);
  }
  __syncthreads();
  pass.counts[static_cast<int64_t>(blockIdx.x) * kDigits + threadIdx.x] = counts[threadIdx.x];
}

// Returns the sum of the values of all threads before the calling one. `scratch` has kWarps values.
__device__ int SumBefore(int value, int* scratch) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  int sum = value;
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int other = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(distance));
    if (lane >= distance) sum += other;
  }
  if (lane == kWarp - 1) scratch[warp] = sum;
  __syncthreads();
  for (int before = 0; before < warp; ++before) sum += scratch[before];
  return sum - value;
}

// Returns the lanes with the calling lane's digit, among those that are `active`.
__device__ unsigned LanesOfDigit(int digit, bool active) {
  unsigned lanes = __ballot_sync(kAllLanes, active);
#pragma unroll
  for (int bit = 0; bit < kDigitBits; ++bit) {
    const bool is_set = (digit >> bit & 1) != 0;
    const unsigned set = __ballot_sync(kAllLanes, is_set);
    lanes &= is_set ? set : ~set;
  }
  return lanes;
}

__global__ void __launch_bounds__(kThreads) PlaceDigitsKernel(const Pass pass) {
  int* const scratch = SharedMemory<int>();
  const int lane = static_cast<int>(threadIdx.x) % kWarp,
            warp = static_cast<int>(threadIdx.x) / kWarp;
  int* const next = scratch + kWarps;  // (warps, digits): the counts, then where the next one goes
  for (int i = 0; i < kWarps; ++i) next[i * kDigits + threadIdx.x] = 0;
  // The thread of a digit counts how many ids have it, and how many of those are in earlier tiles.
  int total = 0, before = 0;
#pragma unroll 4
  for (int64_t tile = 0; tile < pass.tiles; ++tile) {
    const int count = pass.counts[tile * kDigits + threadIdx.x];
    total += count;
    before += tile < blockIdx.x ? count : 0;
  }
  before += SumBefore(total, scratch);
  __syncthreads();
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kTile + warp * kPerWarp;
  Item items[kPerThread] = {};
  int ranks[kPerThread] = {};  // rank among those of the warp with the same digit
  int* const own = next + warp * kDigits;
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (first + i * kWarp >= pass.count) break;
    const int64_t place = first + i * kWarp + lane;
    const bool active = place < pass.count;
    items[i] = active ? ItemAt(pass, place) : Item{};
    const int digit = DigitOf(pass, items[i].id);
    const unsigned lanes = LanesOfDigit(digit, active);
    const int earlier = __popc(lanes & ((1U << lane) - 1U));
    ranks[i] = own[digit] + earlier;
    __syncwarp();
    if (active && earlier == 0) own[digit] += __popc(lanes);
    __syncwarp();
  }
  __syncthreads();
  for (int i = 0; i < kWarps; ++i) {
    int& place = next[i * kDigits + threadIdx.x];
    const int count = place;
    place = before;
    before += count;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kPerThread; ++i) {
    if (first + i * kWarp + lane >= pass.count) break;
    const int place = own[DigitOf(pass, items[i].id)] + ranks[i];
    pass.to[place] = items[i].origin;
    if (pass.sorted_ids != nullptr) pass.sorted_ids[place] = items[i].id;
  }
}

}  // namespace

int64_t IdOrderWorkspaceBytes(int64_t count) {
  return (count + TilesOf(count) * kDigits) * static_cast<int64_t>(sizeof(int32_t));
}

cudaError_t LaunchIdOrder(cudaStream_t stream, const IdOrderArguments& a) {
  const auto bits = static_cast<int>(std::bit_width(static_cast<uint64_t>(a.vocabulary)));
  const int passes = (bits + kDigitBits - 1) / kDigitBits;
  int32_t* const other_origins = a.workspace;
  Pass pass = {.count = a.count,
               .vocabulary = a.vocabulary,
               .ids = a.ids,
               .from = nullptr,
               .to = passes % 2 == 1 ? a.origins : other_origins,
               .sorted_ids = nullptr,
               .counts = a.workspace + a.count,
               .tiles = TilesOf(a.count),
               .shift = 0};
  const dim3 grid(static_cast<unsigned>(pass.tiles)), block(kThreads);
  for (int i = 0; i < passes; ++i) {
    if (i + 1 == passes) pass.sorted_ids = a.sorted_ids;
    cudaError_t error = Launch(CountDigitsKernel, grid, block, kDigits * sizeof(int), stream, pass);
    if (error != cudaSuccess) return error;
    error = Launch(PlaceDigitsKernel, grid, block, (kWarps + kWarps * kDigits) * sizeof(int),
                   stream, pass);
    if (error != cudaSuccess) return error;
    pass.from = pass.to;
    pass.to = pass.to == a.origins ? other_origins : a.origins;
    pass.shift += kDigitBits;
  }
  return cudaSuccess;
}

}  // namespace stagecoach::kernels
