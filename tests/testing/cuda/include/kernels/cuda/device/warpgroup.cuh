#ifndef STAGECOACH_KERNELS_CUDA_DEVICE_WARPGROUP_CUH_
#define STAGECOACH_KERNELS_CUDA_DEVICE_WARPGROUP_CUH_

// The emulator's version: it is found before the file of this name that nvcc sees, and has the same
// contract.
#include <cstdint>

#include "kernels/cuda/device/product_factor.cuh"
#include "tests/testing/cuda/emulator/block.h"

namespace stagecoach::kernels {

inline constexpr int kWarpgroup = 128;

inline int WarpgroupOfBlock(testing::cuda::Location location = testing::cuda::Location::current()) {
  return __shfl_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x) / kWarpgroup, 0, warpSize,
                     location);
}

inline uint32_t SharedAddress(const void* address) { return testing::cuda::SharedAddress(address); }

inline void ShowToProducts() { testing::cuda::ShowToProducts(); }

template <int kN, int kWords>
void Pin(float (&/*registers*/)[kN][kWords]) {}
template <int kN, int kWords>
void Pin(uint32_t (&/*registers*/)[kN][kWords]) {}

inline void BeginProducts(testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::BeginProducts(location);
}
inline void CommitProducts(testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::CommitProducts(location);
}
template <int kGroups>
void WaitForProducts(testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::WaitForProducts(kGroups, location);
}

template <bool kSumsOverRows, int kN>
void StartProduct(float (&c)[kN][4], uint64_t a, uint64_t b, bool adds,
                  testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::StartProduct({.c = c[0],
                               .a_words = nullptr,
                               .a = a,
                               .b = b,
                               .columns = 8 * kN,
                               .sums_over_rows = kSumsOverRows,
                               .adds = adds},
                              location);
}
template <bool kSumsOverRows, int kN>
void StartProduct(float (&c)[kN][4], const uint32_t (&a)[4], uint64_t b, bool adds,
                  testing::cuda::Location location = testing::cuda::Location::current()) {
  testing::cuda::StartProduct({.c = c[0],
                               .a_words = a,
                               .a = 0,
                               .b = b,
                               .columns = 8 * kN,
                               .sums_over_rows = kSumsOverRows,
                               .adds = adds},
                              location);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_DEVICE_WARPGROUP_CUH_
