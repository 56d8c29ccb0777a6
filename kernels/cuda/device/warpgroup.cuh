#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_WARPGROUP_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_WARPGROUP_CUH_

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/product_factor.cuh"

// Products of tiles by the four warps of a warpgroup, 128 threads from a multiple of 128 on, on
// tensor cores that read shared memory themselves while the threads continue (wgmma). They exist on
// GPUs of compute capability 9.0 alone, in code that is compiled for sm_90a. All threads of a
// warpgroup call these functions together.
//
// Warp w of the warpgroup has the rows 16 w to 16 w + 15 of c and a, in registers as described in
// tensor_core.cuh: c[n] are the columns 8 n to 8 n + 7. From StartProduct to the wait for its group
// nobody may touch c, a's words, or what it reads of shared memory; but further products may be
// added to the same c.
namespace stagecoach::kernels {

inline constexpr int kWarpgroup = 128;  // threads

// Returns the number of the calling thread's warpgroup, in a way that shows the compiler that its
// threads have the same.
__device__ __forceinline__ int WarpgroupOfBlock() {
  return __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / kWarpgroup, 0);
}

__device__ __forceinline__ uint32_t SharedAddress(const void* address) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(address));
}

// Makes what the calling thread has written to shared memory, CopyAsync included once it has
// waited for it, visible to products that start after a barrier.
__device__ __forceinline__ void ShowToProducts() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Keep the compiler from moving what writes or reads these registers across this place. Needed
// before BeginProducts for registers that the products read, and after a wait for their results.
template <int kN, int kWords>
__device__ __forceinline__ void Pin(float (&registers)[kN][kWords]) {
#pragma unroll
  for (int i = 0; i < kN * kWords; ++i) {
    asm volatile("" : "+f"(registers[i / kWords][i % kWords])::"memory");
  }
}
template <int kN, int kWords>
__device__ __forceinline__ void Pin(uint32_t (&registers)[kN][kWords]) {
#pragma unroll
  for (int i = 0; i < kN * kWords; ++i) {
    asm volatile("" : "+r"(registers[i / kWords][i % kWords])::"memory");
  }
}

// Lets products read the registers as they are now: the first call for each group.
__device__ __forceinline__ void BeginProducts() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
// Makes a group of the products that have been started since the last group.
__device__ __forceinline__ void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all groups but the last kGroups are complete.
template <int kGroups>
__device__ __forceinline__ void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

// Starts c = a b, or c += a b if it `adds`: 64 rows, kN times 8 columns, a sum of 16 products. a
// and b are descriptors. a's rows are those of its matrix. Columns of b are rows of its matrix and,
// if kSumsOverRows, columns.
template <bool kSumsOverRows, int kN>
__device__ __forceinline__ void StartProduct(float (&c)[kN][4], uint64_t a, uint64_t b, bool adds) {
  static_assert(kN == 8 || kN == 16);
  if constexpr (kN == 8) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %34, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18,"
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, %32, %33, adds, 1, 1, 0, %35; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
          "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
          "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
          "+f"(c[7][2]), "+f"(c[7][3])
        : "l"(a), "l"(b), "r"(adds ? 1 : 0), "n"(kSumsOverRows ? 1 : 0));
  } else {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %66, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18,"
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35,"
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52,"
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, %64, %65, adds, 1, 1, 0, %67; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
          "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
          "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
          "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
          "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]),
          "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]),
          "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]),
          "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
          "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]),
          "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
        : "l"(a), "l"(b), "r"(adds ? 1 : 0), "n"(kSumsOverRows ? 1 : 0));
  }
}
// Does so with an a in registers.
template <bool kSumsOverRows, int kN>
__device__ __forceinline__ void StartProduct(float (&c)[kN][4], const uint32_t (&a)[4], uint64_t b,
                                             bool adds) {
  static_assert(kN == 8 || kN == 16);
  if constexpr (kN == 8) {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %37, 0; "
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18,"
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
        "}, {%32, %33, %34, %35}, %36, adds, 1, 1, %38; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
          "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
          "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
          "+f"(c[7][2]), "+f"(c[7][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds ? 1 : 0),
          "n"(kSumsOverRows ? 1 : 0));
  } else {
    asm volatile(
        "{ .reg .pred adds; setp.ne.b32 adds, %69, 0; "
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18,"
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35,"
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52,"
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
        "}, {%64, %65, %66, %67}, %68, adds, 1, 1, %70; }"
        : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]), "+f"(c[1][0]), "+f"(c[1][1]),
          "+f"(c[1][2]), "+f"(c[1][3]), "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
          "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]), "+f"(c[4][0]), "+f"(c[4][1]),
          "+f"(c[4][2]), "+f"(c[4][3]), "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
          "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]), "+f"(c[7][0]), "+f"(c[7][1]),
          "+f"(c[7][2]), "+f"(c[7][3]), "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
          "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]), "+f"(c[10][0]),
          "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]), "+f"(c[11][0]), "+f"(c[11][1]),
          "+f"(c[11][2]), "+f"(c[11][3]), "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]),
          "+f"(c[12][3]), "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
          "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]), "+f"(c[15][0]),
          "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds ? 1 : 0),
          "n"(kSumsOverRows ? 1 : 0));
  }
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_WARPGROUP_CUH_
