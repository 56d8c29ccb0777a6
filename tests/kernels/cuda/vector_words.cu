// One kernel for each width of kernels/cuda/device/vector.cuh, compiled to PTX, which
// vector_test.cc reads.

#include <cuda_bf16.h>

#include "kernels/cuda/device/vector.cuh"

namespace stagecoach::kernels {
namespace {

template <typename T, int N>
__device__ void CopyWord(const T* from, T* to) {
  float values[N];
  Load<T, N>(from, values);
  Store<T, N>(to, values);
}

template <typename T, int N>
__device__ void CopyWordOnce(const T* from, T* to) {
  float values[N];
  LoadStreaming<T, N>(from, values);
  StoreStreaming<T, N>(to, values);
}

}  // namespace

extern "C" __global__ void Float32x4(const float* from, float* to) { CopyWord<float, 4>(from, to); }

extern "C" __global__ void Float32x4Streaming(const float* from, float* to) {
  CopyWordOnce<float, 4>(from, to);
}

extern "C" __global__ void Bfloat16x8(const __nv_bfloat16* from, __nv_bfloat16* to) {
  CopyWord<__nv_bfloat16, 8>(from, to);
}

extern "C" __global__ void Bfloat16x8Streaming(const __nv_bfloat16* from, __nv_bfloat16* to) {
  CopyWordOnce<__nv_bfloat16, 8>(from, to);
}

extern "C" __global__ void Bfloat16x4(const __nv_bfloat16* from, __nv_bfloat16* to) {
  CopyWord<__nv_bfloat16, 4>(from, to);
}

// At an address of this kind, the compiler divides an assignment into its four words.
extern "C" __global__ void Bfloat16x8OfRow(const __nv_bfloat16* from, __nv_bfloat16* to,
                                           int64_t columns, int64_t pitch) {
  const int64_t vector = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  const int64_t row = vector / columns;
  const int64_t at = row * 2 * pitch + (vector - row * columns) * 8;
  CopyWord<__nv_bfloat16, 8>(from + at, to + at);
}

}  // namespace stagecoach::kernels
