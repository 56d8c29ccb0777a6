#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_CONVOLUTION_BIAS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_CONVOLUTION_BIAS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/ops/linear/column_sums_kernels.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/ops/convolution.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

// Computes a convolution's db: the sums over the columns of dy (N P Q, O).
class BiasGradient {
 public:
  explicit BiasGradient(const ConvolutionShape& shape)
      : rows_(shape.samples * shape.output_height() * shape.output_width()),
        columns_(shape.outputs),
        has_bias_(shape.has_bias) {}

  int64_t workspace_bytes() const {
    return has_bias_ ? AlignScratch(ColumnSumsWorkspaceBytes(rows_, columns_)) : 0;
  }
  absl::Status Run(cudaStream_t stream, ElementType type, const Tensor& dy, const Tensor& db,
                   bool accumulate, std::byte* workspace) const {
    if (!has_bias_) return absl::OkStatus();
    return CudaStatus(LaunchColumnSums(stream, type,
                                       {.rows = rows_,
                                        .columns = columns_,
                                        .matrix = dy.data,
                                        .sums = db.f32(),
                                        .accumulate = accumulate,
                                        .workspace = reinterpret_cast<float*>(workspace)}),
                      "LaunchColumnSums");
  }

 private:
  const int64_t rows_, columns_;
  const bool has_bias_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_CONVOLUTION_BIAS_H_
