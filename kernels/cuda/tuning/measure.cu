#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/reduce.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/tuning/measure_kernels.h"

namespace stagecoach::kernels {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kPerThread = 16;  // until the grid reaches its maximum size
constexpr int64_t kMaxBlocks = 1024;

unsigned BlocksFor(int64_t count) {
  constexpr int64_t kPerBlock = kThreads * kPerThread;
  return static_cast<unsigned>(std::min((count + kPerBlock - 1) / kPerBlock, kMaxBlocks));
}

// Calls `visit(i)` for each i below `count`, once in the whole grid.
template <typename Visit>
__device__ void ForEachOfGrid(int64_t count, Visit visit) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += step) {
    visit(i);
  }
}

// The output function of SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number
// generators"): one to one.
__device__ uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31);
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    FillUniformKernel(int64_t elements, uint64_t seed, T* to) {
  ForEachOfGrid(elements, [&](int64_t i) {
    const auto bits = static_cast<uint32_t>(Mix(seed + static_cast<uint64_t>(i)) >> 40);
    to[i] = FromFloat<T>(static_cast<float>(bits) * 0x1p-23F - 1.0F);
  });
}

__global__ void __launch_bounds__(kThreads)
    FingerprintKernel(int64_t count, const uint32_t* words, unsigned long long* sum) {
  uint64_t own = 0;
  ForEachOfGrid(count, [&](int64_t i) { own += Mix(Mix(static_cast<uint64_t>(i)) + words[i]); });
  // Sums of integers do not depend on the order.
  atomicAdd(sum, static_cast<unsigned long long>(own));
}

constexpr int kWarps = kThreads / kWarp;  // of a block, each of which has a sum
static_assert(kMaxBlocks * kWarps == kMostSketchSums);

template <typename T>
__global__ void __launch_bounds__(kThreads) SketchKernel(const SketchArguments a) {
  double own = 0.0;
  ForEachOfGrid(a.rows * a.columns, [&](int64_t i) {
    const int64_t row = i / a.columns;
    const double value =
        ToFloat(static_cast<const T*>(a.matrix)[row * a.pitch + (i - row * a.columns)]);
    own += (Mix(static_cast<uint64_t>(i)) & 1U) == 0 ? value : -value;
  });
#pragma unroll
  for (int other = kWarp / 2; other > 0; other /= 2) {
    own += __shfl_xor_sync(0xFFFFFFFFU, own, other);
  }
  const int thread = static_cast<int>(threadIdx.x);
  if (thread % kWarp == 0) a.sums[blockIdx.x * kWarps + thread / kWarp] = own;
}

}  // namespace

int64_t SketchSums(int64_t elements) { return int64_t{BlocksFor(elements)} * kWarps; }

cudaError_t LaunchSketch(cudaStream_t stream, ElementType type, const SketchArguments& arguments) {
  return Launch(
      type == ElementType::kFloat32 ? SketchKernel<float> : SketchKernel<__nv_bfloat16>,
      dim3(BlocksFor(arguments.rows * arguments.columns)), dim3(kThreads), 0, stream, arguments);
}

cudaError_t LaunchFillUniform(cudaStream_t stream, ElementType type, int64_t elements,
                              uint32_t seed, void* to) {
  const uint64_t first = static_cast<uint64_t>(seed) << 48;  // more than any number of elements
  const dim3 grid(BlocksFor(elements)), block(kThreads);
  return type == ElementType::kFloat32
             ? Launch(FillUniformKernel<float>, grid, block, 0, stream, elements, first,
                      static_cast<float*>(to))
             : Launch(FillUniformKernel<__nv_bfloat16>, grid, block, 0, stream, elements, first,
                      static_cast<__nv_bfloat16*>(to));
}

cudaError_t LaunchFingerprint(cudaStream_t stream, int64_t count, const uint32_t* words,
                              unsigned long long* sum) {
  return Launch(FingerprintKernel, dim3(BlocksFor(count)), dim3(kThreads), 0, stream, count, words,
                sum);
}

}  // namespace stagecoach::kernels
