#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/ops/attention/attention_warpgroup.cuh"
#include "tests/testing/cuda/warpgroup_test_kernels.h"

namespace stagecoach::testing::cuda {
namespace {

using kernels::kPanelRowBytes;
using kernels::kWarpgroup;
using kernels::kWarpgroupRows;
using kernels::PanelBytes;

constexpr int kRows = 2 * kWarpgroupRows, kThreads = 2 * kWarpgroup;

template <int kColumns>
__device__ void StoreSums(const float (&sums)[kColumns / 8][4], float* c) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int first_row = static_cast<int>(threadIdx.x / 32) * 16;
#pragma unroll
  for (int n = 0; n < kColumns / 8; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first_row + lane / 4 + i / 2 * 8, column = 8 * n + lane % 4 * 2 + i % 2;
      c[row * kColumns + column] = sums[n][i];
    }
  }
}

template <int kColumns, int kTerms>
__global__ void __launch_bounds__(kThreads)
    Transposed(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
  unsigned char* const a_panels = kernels::SharedPanels();
  unsigned char* const b_panels = a_panels + PanelBytes<kTerms>(kRows);
  kernels::CopyPanels<kTerms, kRows, kThreads>(a_panels, a, kTerms, kRows);
  kernels::CopyPanels<kTerms, kColumns, kThreads>(b_panels, b, kTerms, kColumns);
  kernels::CommitCopies();
  kernels::WaitForCopies<0>();
  kernels::ShowToProducts();
  __syncthreads();
  const unsigned char* const own =
      a_panels + kernels::WarpgroupOfBlock() * kWarpgroupRows * kPanelRowBytes;
  float sums[kColumns / 8][4];
  kernels::BeginProducts();
  kernels::StartTransposedProduct<kTerms, kRows, kColumns>(
      kernels::FactorIn<kRows>(own), kernels::FactorIn<kColumns>(b_panels), sums);
  kernels::CommitProducts();
  kernels::WaitForProducts<0>();
  kernels::Pin(sums);
  StoreSums<kColumns>(sums, c);
}

template <int kColumns, int kTerms>
__global__ void __launch_bounds__(kThreads)
    Sums(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
  unsigned char* const panels = kernels::SharedPanels();
  kernels::CopyPanels<kColumns, kTerms, kThreads>(panels, b, kColumns, kTerms);
  kernels::CommitCopies();
  kernels::WaitForCopies<0>();
  kernels::ShowToProducts();
  __syncthreads();
  const unsigned lane = threadIdx.x % 32, first_row = threadIdx.x / 32 * 16;
  uint32_t words[kTerms / 16][4];
#pragma unroll
  for (int step = 0; step < kTerms / 16; ++step) {
#pragma unroll
    for (unsigned word = 0; word < 4; ++word) {
      const unsigned row = first_row + lane / 4 + word % 2 * 8;
      const unsigned term = 16 * step + lane % 4 * 2 + word / 2 * 8;
      memcpy(&words[step][word], a + row * kTerms + term, sizeof(uint32_t));
    }
  }
  float sums[kColumns / 8][4] = {};
  kernels::Pin(words);
  kernels::Pin(sums);
  kernels::BeginProducts();
  kernels::StartSum<kColumns, kTerms>(words, kernels::FactorIn<kTerms>(panels), sums);
  kernels::CommitProducts();
  kernels::WaitForProducts<0>();
  kernels::Pin(sums);
  StoreSums<kColumns>(sums, c);
}

template <int kColumns, int kTerms, bool kTermsAreRows>
cudaError_t LaunchProduct(cudaStream_t stream, const uint16_t* a, const uint16_t* b, float* c) {
  const unsigned a_bytes = kTermsAreRows ? 0 : PanelBytes<kTerms>(kRows);
  const unsigned bytes =
      kernels::kPanelAlignment + a_bytes + kColumns * kTerms * unsigned{sizeof(uint16_t)};
  return kernels::Launch(kTermsAreRows ? Sums<kColumns, kTerms> : Transposed<kColumns, kTerms>,
                         dim3(1), dim3(kThreads), bytes, stream,
                         reinterpret_cast<const __nv_bfloat16*>(a),
                         reinterpret_cast<const __nv_bfloat16*>(b), c);
}

template <int kColumns, int kTerms, bool kTermsAreRows>
constexpr WarpgroupProduct Product() {
  return {kRows, kColumns, kTerms, kTermsAreRows, &LaunchProduct<kColumns, kTerms, kTermsAreRows>};
}

constexpr WarpgroupProduct kProducts[] = {
    Product<64, 64, false>(),   Product<64, 128, false>(), Product<128, 64, false>(),
    Product<128, 128, false>(), Product<64, 64, true>(),   Product<64, 128, true>(),
    Product<128, 64, true>(),   Product<128, 128, true>(),
};

}  // namespace

std::span<const WarpgroupProduct> WarpgroupProducts() { return kProducts; }

}  // namespace stagecoach::testing::cuda
