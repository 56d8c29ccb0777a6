#ifndef STAGECOACH_KERNELS_CUDA_TUNING_MEASURE_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_TUNING_MEASURE_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// Kernels that make the operands of trials and compare their results.
namespace stagecoach::kernels {

// Sets to[i] to a number in [-1, 1) that depends on i and `seed` alone, uniformly distributed
// except for the rounding to `type`.
cudaError_t LaunchFillUniform(cudaStream_t stream, ElementType type, int64_t elements,
                              uint32_t seed, void* to);

// Adds to *sum a number that depends on all bits of `words` and on their places: different results
// have different sums, with a chance of 2^-64 of equality. `sum` is 64 bits of the GPU's memory.
cudaError_t LaunchFingerprint(cudaStream_t stream, int64_t count, const uint32_t* words,
                              unsigned long long* sum);

// Writes SketchSums(elements of the matrix) sums of its elements: each is in one of them, and added
// or subtracted by a coin that its place decides. So the sums of a difference of two matrices are
// the differences of their sums, and the squares of these add up to about the square of its norm
// (Alon, Matias & Szegedy 1996, "The space complexity of approximating the frequency moments").
struct SketchArguments {
  int64_t rows = 1, columns = 1;
  int64_t pitch = 1;  // elements from one row to the next
  const void* matrix = nullptr;
  double* sums = nullptr;
};
int64_t SketchSums(int64_t elements);
inline constexpr int64_t kMostSketchSums = 8192;
cudaError_t LaunchSketch(cudaStream_t stream, ElementType type, const SketchArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_TUNING_MEASURE_KERNELS_H_
