#ifndef STAGECOACH_KERNELS_CUDA_OPS_IMAGES_IMAGE_NORM_KERNELS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_IMAGES_IMAGE_NORM_KERNELS_H_

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/device/element_type.h"

// The kernels of ImageNormOp (kernels/ops/image_norm.h has the formulas and shapes). Channels are
// last in memory: images are a matrix of N A rows and C columns. `void` pointers are to elements of
// the type passed with them.
namespace stagecoach::kernels {

struct ImageNormExtents {
  int64_t samples = 1;   // N
  int64_t channels = 1;  // C
  int64_t area = 1;      // A
  int64_t groups = 0;    // 0: batch norm
};

// Returns the scratch for the statistics, and for the backward pass.
int64_t ImageNormWorkspaceBytes(ElementType type, const ImageNormExtents& extents);

struct ImageNormArguments {
  ImageNormExtents extents;
  float epsilon = 0.0F;
  const void* x = nullptr;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  float* mean = nullptr;
  float* variance = nullptr;
  const void* addend = nullptr;  // may be null
  // Unless of_addend.mean is null, the addend is the x of another norm of these extents, whose
  // result is added.
  struct OtherNorm {
    float epsilon = 0.0F;
    const void* gamma = nullptr;
    const void* beta = nullptr;
    const float* mean = nullptr;
    const float* variance = nullptr;
  } of_addend;
  bool has_relu = false;
  void* y = nullptr;
  float* workspace = nullptr;
  // Use LaunchEarly: for the second kernel of the statistics, and for Apply right after them.
  bool starts_early = false;
};
// Writes mean and variance.
cudaError_t LaunchImageNormStatistics(cudaStream_t stream, ElementType type,
                                      const ImageNormArguments& arguments);
// Writes y.
cudaError_t LaunchImageNormApply(cudaStream_t stream, ElementType type,
                                 const ImageNormArguments& arguments);

// dx is computed unless it is null, and so are dgamma and dbeta unless dgamma is null: together
// takes less time than separately, with the same bits. `dx` may be `dy`.
struct ImageNormBackwardArguments {
  ImageNormExtents extents;
  float epsilon = 0.0F;
  const void* dy = nullptr;
  const void* x = nullptr;
  const void* gamma = nullptr;
  const void* beta = nullptr;
  const float* mean = nullptr;
  const float* variance = nullptr;
  bool has_relu = false;
  const void* dy_addend = nullptr;  // may be null; otherwise there are a ReLU and dz
  const void* y = nullptr;          // null: the ReLU is recomputed from gamma and beta
  void* dz = nullptr;               // may be null
  void* dx = nullptr;
  float* dgamma = nullptr;
  float* dbeta = nullptr;
  bool accumulate = false;
  // Unless to_mean is null, the sets' statistics are collected as by LaunchImageNormCollect, by the
  // kernel that computes dgamma. Not with groups.
  float unbiased = 1.0F;
  float* to_mean = nullptr;
  float* to_variance = nullptr;
  float* workspace = nullptr;
  bool starts_early = false;  // use LaunchEarly for all kernels but the first
};
cudaError_t LaunchImageNormBackward(cudaStream_t stream, ElementType type,
                                    const ImageNormBackwardArguments& arguments);

struct ImageNormCollectArguments {
  int64_t sets = 1;
  float unbiased = 1.0F;  // M / (M - 1)
  const float* mean = nullptr;
  const float* variance = nullptr;
  float* to_mean = nullptr;
  float* to_variance = nullptr;
  bool accumulate = false;
};
cudaError_t LaunchImageNormCollect(cudaStream_t stream, const ImageNormCollectArguments& arguments);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_IMAGES_IMAGE_NORM_KERNELS_H_
