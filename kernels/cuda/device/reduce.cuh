#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_REDUCE_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_REDUCE_CUH_

#include <cuda_runtime.h>

// Sums and maxima over the threads of a *team*: the blockDim.x threads, a multiple of 32, that have
// the same threadIdx.y and .z. A block is either one team or several teams of one warp. The order
// of a sum depends on blockDim.x alone, and every thread of the team gets the same bits.
namespace stagecoach::kernels {

inline constexpr int kWarp = 32;
inline constexpr int kMaxWarps = 32;  // of a block: the values that `scratch` below must hold
inline constexpr unsigned kAllLanes = 0xFFFFFFFFU;

// Returns the value of the lane at `distance` (in bits: lane xor distance).
__device__ inline float FromLane(float value, int distance) {
  return __shfl_xor_sync(kAllLanes, value, distance);
}
__device__ inline double FromLane(double value, int distance) {
  return __shfl_xor_sync(kAllLanes, value, distance);
}

// Two sums that are formed together.
struct SumPair {
  float first, second;
};
__device__ inline SumPair FromLane(SumPair pair, int distance) {
  return {FromLane(pair.first, distance), FromLane(pair.second, distance)};
}
__device__ inline SumPair operator+(SumPair a, SumPair b) {
  return {a.first + b.first, a.second + b.second};
}

// A value and where it was found.
struct Located {
  float value;
  int index;
};
__device__ inline Located FromLane(Located located, int distance) {
  return {FromLane(located.value, distance), __shfl_xor_sync(kAllLanes, located.index, distance)};
}
// Returns the larger of two, or the one that comes first if they are equal. NaN is never larger.
__device__ inline Located FirstLargest(Located a, Located b) {
  return b.value > a.value || (b.value == a.value && b.index < a.index) ? b : a;
}

// `combine` is commutative. Must be called by whole warps.
template <typename T, typename Combine>
__device__ T WarpReduce(T value, Combine combine) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value = combine(value, FromLane(value, distance));
  }
  return value;
}

// Must be called by all threads of the team. `scratch` is kMaxWarps values of shared memory, which
// no other kind of value uses between two barriers; not used by teams of one warp.
template <typename T, typename Combine>
__device__ T TeamReduce(T value, Combine combine, T* scratch) {
  value = WarpReduce(value, combine);
  if (blockDim.x == kWarp) return value;
  const unsigned warps = blockDim.x / kWarp;
  __syncthreads();  // an earlier reduction may still be reading
  if (threadIdx.x % kWarp == 0) scratch[threadIdx.x / kWarp] = value;
  __syncthreads();
  T result = scratch[0];
  for (unsigned warp = 1; warp < warps; ++warp) result = combine(result, scratch[warp]);
  return result;
}

template <typename T>
__device__ T TeamSum(T value, T* scratch) {
  return TeamReduce(
      value, [](T a, T b) { return a + b; }, scratch);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_REDUCE_CUH_
