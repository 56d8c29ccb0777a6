#ifndef STAGECOACH_KERNELS_CUDA_OPS_CONVOLUTION_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_CONVOLUTION_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// What is copied around a convolution (kernels/ops/convolution.h) by cuDNN, which has weights with
// their channels last and, in most types, channels of whole vectors of 16 bytes: zeros fill them
// up.
namespace stagecoach::kernels {

// Weights with channels first, (O, I, K K), and last, (O', K K, I') with O' >= O and I' >= I.
struct WeightOrderArguments {
  int64_t outputs = 1, inputs = 1;                // O and I, of a group
  int64_t window = 1;                             // K K
  int64_t padded_outputs = 1, padded_inputs = 1;  // O' and I'
};
// Of the type named beside.
cudaError_t LaunchChannelsLast(cudaStream_t stream, ElementType type,
                               const WeightOrderArguments& arguments, const void* first,
                               void* last);
// Of gradients; added to `first` if `accumulate`. What fills up is left out.
cudaError_t LaunchChannelsFirst(cudaStream_t stream, const WeightOrderArguments& arguments,
                                const float* last, float* first, bool accumulate);

// Copies a matrix into one of more columns or fewer, whose type may be float32 instead; columns
// that `from` has not are zeros.
struct CopyColumnsArguments {
  int64_t rows = 1;
  int64_t from_columns = 1, to_columns = 1;
  ElementType from_type = ElementType::kFloat32, to_type = ElementType::kFloat32;
  const void* from = nullptr;
  void* to = nullptr;
};
cudaError_t LaunchCopyColumns(cudaStream_t stream, const CopyColumnsArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_CONVOLUTION_KERNELS_H_
