#ifndef STAGECOACH_KERNELS_CUDA_OPS_CUDA_OPS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_CUDA_OPS_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/device.h"
#include "kernels/ops/ops.h"

// The operations of a CUDA device. Each is in the files of its name: <name>.cc has the operation
// (checks, choice of kernels, absl::Status), <name>.cu the kernels and what launches them, and
// <name>_kernels.h what the two share, plain enough for both compilers. Products are cuBLASLt's.
namespace stagecoach::kernels {

class BlasLt;

// One maker per operation. `type` is the device's activation type.
// `blas` outlives the operation.
absl::StatusOr<std::unique_ptr<LinearOp>> CreateCudaLinear(const LinearShape& shape, BlasLt& blas);
absl::StatusOr<std::unique_ptr<LayerNormOp>> CreateCudaLayerNorm(const LayerNormShape& shape,
                                                                 DType type);
absl::StatusOr<std::unique_ptr<LossOp>> CreateCudaSoftmaxCrossEntropy(const LossShape& shape,
                                                                      DType type);
absl::StatusOr<std::unique_ptr<LossOp>> CreateCudaMeanSquaredError(const LossShape& shape,
                                                                   DType type);
std::unique_ptr<ElementwiseOps> CreateCudaElementwise();
// Tables of groups are taken from `device`.
std::unique_ptr<OptimizerOps> CreateCudaOptimizer(Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_CUDA_OPS_H_
