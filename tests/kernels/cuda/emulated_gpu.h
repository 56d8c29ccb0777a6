#ifndef STAGECOACH_TESTS_KERNELS_CUDA_EMULATED_GPU_H_
#define STAGECOACH_TESTS_KERNELS_CUDA_EMULATED_GPU_H_

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device/element_type.h"
#include "kernels/tensor.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/random_tensor.h"

namespace stagecoach::testing {

inline constexpr std::array<cuda::ThreadOrder, 3> kThreadOrders = {
    cuda::ThreadOrder::kAscending, cuda::ThreadOrder::kDescending, cuda::ThreadOrder::kRandom};

// The types that activations may have.
inline constexpr std::array<kernels::DType, 2> kActivationTypes = {kernels::DType::kFloat32,
                                                                   kernels::DType::kBfloat16};
inline kernels::ElementType ElementTypeOf(kernels::DType type) {
  return type == kernels::DType::kBfloat16 ? kernels::ElementType::kBfloat16
                                           : kernels::ElementType::kFloat32;
}

// Returns whether the first GPU has the products of warpgroups (kernels/cuda/device/warpgroup.cuh).
inline bool HasWarpgroupProducts() {
  cudaDeviceProp properties = {};
  return cudaGetDeviceProperties(&properties, 0) == cudaSuccess && properties.major == 9 &&
         properties.minor == 0;
}

// A GPU of the stand-in with one stream and the memory of one test, for tests that call launchers
// without a device around them. It restarts the stand-in, so only one may exist at a time. The
// destructor frees everything, upon which the stand-in checks the memory around each tensor.
class EmulatedGpu {
 public:
  explicit EmulatedGpu(cuda::ThreadOrder order = cuda::ThreadOrder::kRandom);
  ~EmulatedGpu();
  EmulatedGpu(const EmulatedGpu&) = delete;
  EmulatedGpu& operator=(const EmulatedGpu&) = delete;

  cudaStream_t stream() const { return stream_; }

  // Create tensors in the GPU's memory that live as long as this. The address of each is `offset`
  // elements beyond one that is aligned for anything. Results hold what the stand-in fills memory
  // with, which reads as NaN.
  kernels::Tensor Operand(kernels::DType type, absl::Span<const float> values, int64_t offset = 0);
  kernels::Tensor Doubles(absl::Span<const double> values);
  kernels::Tensor Integers(absl::Span<const int32_t> values);
  kernels::Tensor Result(kernels::DType type, int64_t elements, int64_t offset = 0);
  // Copies any bytes; null for none.
  template <typename T>
  T* Upload(absl::Span<const T> values) {
    return static_cast<T*>(
        UploadBytes(values.data(), static_cast<int64_t>(values.size() * sizeof(T))));
  }

  // Returns the elements, once the stream has finished.
  std::vector<double> Values(const kernels::Tensor& tensor);

 private:
  void* Allocate(int64_t bytes);
  void* UploadBytes(const void* bytes, int64_t count);
  void Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind);

  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};

// Compares bits, so that a NaN equals itself.
inline bool HaveTheSameBits(const std::vector<std::vector<double>>& a,
                            const std::vector<std::vector<double>>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const std::vector<double>& left, const std::vector<double>& right) {
                      return left.size() == right.size() &&
                             std::memcmp(left.data(), right.data(), left.size() * sizeof(double)) ==
                                 0;
                    });
}

// Returns the result of `run(gpu)`, a std::vector<std::vector<double>>, which must be the same, to
// the bit, in every order in which threads may run.
template <typename Run>
std::vector<std::vector<double>> InEveryOrder(Run run) {
  std::vector<std::vector<double>> first;
  for (const cuda::ThreadOrder order : kThreadOrders) {
    EmulatedGpu gpu(order);
    auto results = run(gpu);
    if (order == kThreadOrders.front()) {
      first = std::move(results);
    } else {
      EXPECT_TRUE(HaveTheSameBits(results, first))
          << "other bits in thread order " << static_cast<int>(order);
    }
  }
  return first;
}

// Returns "float32" or "bfloat16", for names of tests.
inline const char* NameOf(kernels::DType type) {
  return type == kernels::DType::kBfloat16 ? "bfloat16" : "float32";
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_KERNELS_CUDA_EMULATED_GPU_H_
