#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_CONVOLUTION_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_CONVOLUTION_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The copies around a convolution (kernels/ops/convolution.h) by cuDNN, which needs weights with
// their channels last and, in most types, channels of whole vectors of 16 bytes, which are padded
// with zeros.
namespace stagecoach::kernels {

// Weights with channels first, (O, I, K K), and last, (O', K K, I') with O' >= O and I' >= I.
struct WeightOrderArguments {
  int64_t outputs = 1, inputs = 1;                // O and I, of a group
  int64_t window = 1;                             // K K
  int64_t padded_outputs = 1, padded_inputs = 1;  // O' and I'
};
// `first` and `last` are of the type passed separately.
cudaError_t LaunchChannelsLast(cudaStream_t stream, ElementType type,
                               const WeightOrderArguments& arguments, const void* first,
                               void* last);
// Reorders gradients, which are added to `first` if `accumulate`. Padding is left out.
cudaError_t LaunchChannelsFirst(cudaStream_t stream, const WeightOrderArguments& arguments,
                                const float* last, float* first, bool accumulate);

// Copies a matrix into one of more or fewer columns, possibly float32 instead of `type`; columns
// that `from` does not have become zeros.
struct CopyColumnsArguments {
  int64_t rows = 1;
  int64_t from_columns = 1, to_columns = 1;
  ElementType from_type = ElementType::kFloat32, to_type = ElementType::kFloat32;
  const void* from = nullptr;
  void* to = nullptr;
};
cudaError_t LaunchCopyColumns(cudaStream_t stream, const CopyColumnsArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_CONVOLUTION_KERNELS_H_
