#ifndef STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_EMULATOR_H_
#define STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_EMULATOR_H_

// Compiles CUDA source as C++, so that the kernels that ship run on the CPU:
//   g++ -std=c++20 -x c++ -I tests/testing/cuda/include -I . -include
//   tests/testing/cuda/emulator/emulator.h
// A kernel is an ordinary function; cudaLaunchKernelEx puts it into a stream of the stand-in
// (stand_in.h), which runs its blocks one after the other and the threads of a block as fibers
// (block.h). Only the part of CUDA that the project uses exists here: no __shared__ variables
// (kernels/cuda/device/shared_memory.cuh replaces them), no cooperative groups, no atomics on
// floating-point numbers, and no inline assembly: tests/testing/cuda/include/ has twins of the
// headers that contain it.

// This header stands for the one that nvcc includes automatically.
#define __CUDA_RUNTIME_H__
#include <cuda_runtime_api.h>
#include <vector_functions.h>
#include <vector_types.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstdint>
#include <cstring>
#include <numbers>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tests/testing/cuda/emulator/block.h"

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ static_assert(false, "use SharedMemory<T>()");
#define __constant__ static_assert(false, "not emulated: __constant__");
#define __grid_constant__
// Names the bounds, so that Clang does not take their constants for unused ones.
#ifdef __clang__
#define __launch_bounds__(...) __attribute__((annotate("launch bounds", __VA_ARGS__)))
#else
#define __launch_bounds__(...)
#endif

// ---- The position of a thread, which the emulator sets whenever it switches.
extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
inline constexpr int warpSize = 32;

// ---- Launches.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  return stagecoach::testing::cuda::LaunchThreads(
      *config, reinterpret_cast<const void*>(kernel),
      [kernel, values = std::tuple<Parameters...>(std::forward<Arguments>(arguments)...)] {
        std::apply(kernel, values);
      });
}

// ---- Barriers and fences.
namespace stagecoach::testing::cuda {

template <typename T>
concept Shuffled = std::is_trivially_copyable_v<T> && sizeof(T) <= sizeof(uint64_t);

template <Shuffled T>
T Shuffle(unsigned mask, T value, unsigned source, Location location) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = WarpExchange(WarpOperation::kShuffle, mask, bits, source, location);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

}  // namespace stagecoach::testing::cuda

inline void __syncthreads(
    stagecoach::testing::cuda::Location location = stagecoach::testing::cuda::Location::current()) {
  stagecoach::testing::cuda::BlockBarrier(false, location);
}
inline int __syncthreads_count(int predicate, stagecoach::testing::cuda::Location location =
                                                  stagecoach::testing::cuda::Location::current()) {
  return stagecoach::testing::cuda::BlockBarrier(predicate != 0, location);
}
inline int __syncthreads_or(int predicate, stagecoach::testing::cuda::Location location =
                                               stagecoach::testing::cuda::Location::current()) {
  return stagecoach::testing::cuda::BlockBarrier(predicate != 0, location) > 0;
}
inline int __syncthreads_and(int predicate, stagecoach::testing::cuda::Location location =
                                                stagecoach::testing::cuda::Location::current()) {
  return stagecoach::testing::cuda::BlockBarrier(predicate == 0, location) == 0;
}
inline void __syncwarp(
    unsigned mask = 0xffffffffu,
    stagecoach::testing::cuda::Location location = stagecoach::testing::cuda::Location::current()) {
  stagecoach::testing::cuda::WarpExchange(stagecoach::testing::cuda::WarpOperation::kBarrier, mask,
                                          0, 0, location);
}
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// ---- Exchanges within a warp. A lane that would read beyond its group of `width` keeps its own.
template <stagecoach::testing::cuda::Shuffled T>
T __shfl_sync(
    unsigned mask, T value, int source, int width = warpSize,
    stagecoach::testing::cuda::Location location = stagecoach::testing::cuda::Location::current()) {
  const unsigned lane = stagecoach::testing::cuda::Lane(), group = static_cast<unsigned>(width) - 1;
  return stagecoach::testing::cuda::Shuffle(
      mask, value, (lane & ~group) | (static_cast<unsigned>(source) & group), location);
}
template <stagecoach::testing::cuda::Shuffled T>
T __shfl_xor_sync(
    unsigned mask, T value, int lane_mask, int width = warpSize,
    stagecoach::testing::cuda::Location location = stagecoach::testing::cuda::Location::current()) {
  const unsigned lane = stagecoach::testing::cuda::Lane(), group = static_cast<unsigned>(width) - 1;
  const unsigned source = lane ^ static_cast<unsigned>(lane_mask);
  return stagecoach::testing::cuda::Shuffle(mask, value, source > (lane | group) ? lane : source,
                                            location);
}
template <stagecoach::testing::cuda::Shuffled T>
T __shfl_down_sync(
    unsigned mask, T value, unsigned delta, int width = warpSize,
    stagecoach::testing::cuda::Location location = stagecoach::testing::cuda::Location::current()) {
  const unsigned lane = stagecoach::testing::cuda::Lane(), group = static_cast<unsigned>(width) - 1;
  const bool inside = delta <= group - (lane & group);
  return stagecoach::testing::cuda::Shuffle(mask, value, inside ? lane + delta : lane, location);
}
template <stagecoach::testing::cuda::Shuffled T>
T __shfl_up_sync(
    unsigned mask, T value, unsigned delta, int width = warpSize,
    stagecoach::testing::cuda::Location location = stagecoach::testing::cuda::Location::current()) {
  const unsigned lane = stagecoach::testing::cuda::Lane(), group = static_cast<unsigned>(width) - 1;
  const bool inside = delta <= (lane & group);
  return stagecoach::testing::cuda::Shuffle(mask, value, inside ? lane - delta : lane, location);
}
inline unsigned __ballot_sync(
    unsigned mask, int predicate,
    stagecoach::testing::cuda::Location location = stagecoach::testing::cuda::Location::current()) {
  return static_cast<unsigned>(stagecoach::testing::cuda::WarpExchange(
      stagecoach::testing::cuda::WarpOperation::kBallot, mask, predicate != 0, 0, location));
}
inline int __any_sync(
    unsigned mask, int predicate,
    stagecoach::testing::cuda::Location location = stagecoach::testing::cuda::Location::current()) {
  return __ballot_sync(mask, predicate, location) != 0;
}
inline int __all_sync(
    unsigned mask, int predicate,
    stagecoach::testing::cuda::Location location = stagecoach::testing::cuda::Location::current()) {
  return __ballot_sync(mask, predicate == 0, location) == 0;
}

// ---- Memory: hints have no effect, and threads run one at a time.
template <typename T>
T __ldg(const T* address) {
  return *address;
}
template <typename T>
T __ldcs(const T* address) {
  return *address;
}
template <typename T>
T __ldcg(const T* address) {
  return *address;
}
template <typename T>
void __stcs(T* address, std::type_identity_t<T> value) {
  *address = value;
}
// Kernels use this for data that the host reads meanwhile.
template <typename T>
void __stwt(T* address, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*address).store(value, std::memory_order_release);
}
template <typename T>
void __stwb(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <typename T>
void __stcg(T* address, std::type_identity_t<T> value) {
  *address = value;
}
template <std::integral T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::exchange(*address, static_cast<T>(*address + value));
}

// ---- Arithmetic that C's mathematical library lacks. The GPU's approximations are exact here:
// their errors are left to the tolerances of tests on a GPU.
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline double rsqrt(double x) { return 1.0 / std::sqrt(x); }
inline void sincospi(double x, double* sine, double* cosine) {
  const double angle = std::numbers::pi * std::remainder(x, 2.0);
  *sine = std::sin(angle);
  *cosine = std::cos(angle);
}
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fadd_rn(float x, float y) { return x + y; }
// The C++ compiler may fuse a product and a sum; these must never be fused.
inline float __fmul_rn(float x, float y) {
  const volatile float product = x * y;
  return product;
}
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<unsigned>(bytes >> (8 * (selector >> (4 * i) & 7)) & 0xFF) << (8 * i);
  }
  return result;
}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline int __ffs(int x) { return x == 0 ? 0 : std::countr_zero(static_cast<unsigned>(x)) + 1; }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
template <typename T>
requires std::is_arithmetic_v<T>
constexpr T max(T a, T b) { return std::max(a, b); }
template <typename T>
requires std::is_arithmetic_v<T>
constexpr T min(T a, T b) { return std::min(a, b); }
// The C library declares these names, but does not export them.
extern "C" inline float __expf(float x) noexcept { return std::exp(x); }
extern "C" inline float __logf(float x) noexcept { return std::log(x); }

#endif  // STAGECOACH_TESTS_TESTING_CUDA_EMULATOR_EMULATOR_H_
