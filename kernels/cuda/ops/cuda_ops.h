#ifndef STAGECOACH_KERNELS_CUDA_OPS_CUDA_OPS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_CUDA_OPS_H_

#include <memory>
#include <typeinfo>

#include "absl/status/statusor.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/device.h"
#include "kernels/ops/ops.h"

// The operations of a CUDA device. Each is in the files of its name: <name>.cc has the operation
// (checks, choice of kernels, absl::Status), <name>.cu the kernels and their launches, and
// <name>_kernels.h the interface between the two, plain enough for both compilers. Products are
// cuBLASLt's, except those of few rows, and convolutions are cuDNN's.
namespace stagecoach::kernels {

class BlasLt;
class CudnnAttentions;
class CudnnConvolutions;
namespace cudnn {
class SharedGpuHandle;
}
class Tuner;

std::unique_ptr<ElementwiseOps> CreateCudaElementwise();
// Tables of groups are allocated from `device`.
std::unique_ptr<OptimizerOps> CreateCudaOptimizer(Device& device);

class CudaOps final : public Ops {
 public:
  // All arguments outlive this object.
  CudaOps(Device& device, BlasLt& blas, Tuner& tuner);
  ~CudaOps() override;

  BlasLt& blas() { return blas_; }
  Tuner& tuner() { return tuner_; }
  CudnnAttentions& cudnn_attentions() { return *cudnn_attentions_; }
  CudnnConvolutions& cudnn_convolutions() { return *cudnn_convolutions_; }
  ElementwiseOps& elementwise() override { return *elementwise_; }
  OptimizerOps& optimizer() override { return *optimizer_; }

 private:
  absl::StatusOr<std::unique_ptr<Operation>> CreateOf(const std::type_info& type,
                                                      const void* shape) override;

  Device& device_;
  BlasLt& blas_;
  Tuner& tuner_;
  const std::unique_ptr<cudnn::SharedGpuHandle> cudnn_handle_;
  const std::unique_ptr<CudnnAttentions> cudnn_attentions_;
  const std::unique_ptr<CudnnConvolutions> cudnn_convolutions_;
  const std::unique_ptr<ElementwiseOps> elementwise_;
  const std::unique_ptr<OptimizerOps> optimizer_;
};

// Return the objects of a CUDA device, which outlives their users.
inline BlasLt& BlasOf(Device& device) { return static_cast<CudaOps&>(device.ops()).blas(); }
inline Tuner& TunerOf(Device& device) { return static_cast<CudaOps&>(device.ops()).tuner(); }
inline CudnnAttentions& CudnnAttentionsOf(Device& device) {
  return static_cast<CudaOps&>(device.ops()).cudnn_attentions();
}
inline CudnnConvolutions& CudnnConvolutionsOf(Device& device) {
  return static_cast<CudaOps&>(device.ops()).cudnn_convolutions();
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_CUDA_OPS_H_
