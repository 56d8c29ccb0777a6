#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_PRODUCT_CONVOLUTION_H_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_PRODUCT_CONVOLUTION_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/products/blas_lt.h"
#include "kernels/ops/convolution.h"
#include "kernels/tensor.h"

// Convolutions (kernels/ops/convolution.h, which has the letters) that are products of matrices.
namespace stagecoach::kernels {

// Returns whether the kernel is of one element, at every place of an image: products of the
// matrices x (N H W, I) and w^T (I, O). dx can be added to what there is in the same pass.
bool IsPointConvolution(const ConvolutionShape& shape);
absl::StatusOr<std::unique_ptr<ConvolutionOp>> CreatePointConvolution(const ConvolutionShape& shape,
                                                                      DType type, BlasLt& blas);

// Returns whether there are so few input channels that they would fill a small part of the vectors
// of 16 bytes for which cuDNN's engines are made: with the three of a picture they take up to eight
// times as long as the memory that they move. Then the numbers under each window become a row of a
// matrix of windows (kernels/cuda/ops/images/windows_kernels.h), by which weights and gradients are
// multiplied. Not if a sample's windows take more than kMostWindowBytes.
bool IsWindowConvolution(const ConvolutionShape& shape, DType type);

// The most bytes of the matrix of windows, which is of some samples at a time.
inline constexpr int64_t kMostWindowBytes = int64_t{64} << 20;

// `input_gradient` computes dx. The matrix has at most `most_bytes`, but always a whole sample.
absl::StatusOr<std::unique_ptr<ConvolutionOp>> CreateWindowConvolution(
    const ConvolutionShape& shape, BlasLt& blas, std::unique_ptr<ConvolutionOp> input_gradient,
    int64_t most_bytes = kMostWindowBytes);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_PRODUCT_CONVOLUTION_H_
