#include "kernels/cuda/ops/cuda_ops.h"

#include "kernels/cuda/cudnn/graph.h"
#include "kernels/cuda/ops/attention/attention_cudnn.h"
#include "kernels/cuda/ops/images/convolution_cudnn.h"
#include "kernels/cuda/tuning/tuner.h"
#include "kernels/ops/operations.h"

namespace stagecoach::kernels {

CudaOps::CudaOps(Device& device, BlasLt& blas, Tuner& tuner)
    : device_(device),
      blas_(blas),
      tuner_(tuner),
      cudnn_handle_(std::make_unique<cudnn::SharedGpuHandle>(tuner.gpu())),
      cudnn_attentions_(std::make_unique<CudnnAttentions>(*cudnn_handle_)),
      cudnn_convolutions_(std::make_unique<CudnnConvolutions>(*cudnn_handle_, tuner)),
      elementwise_(CreateCudaElementwise()),
      optimizer_(CreateCudaOptimizer(device)) {}

CudaOps::~CudaOps() = default;

absl::StatusOr<std::unique_ptr<Operation>> CudaOps::CreateOf(const std::type_info& type,
                                                             const void* shape) {
  return CreateListed(AllShapes(), type, shape,
                      [this](const auto& each) { return CreateOnCuda(each, device_); });
}

}  // namespace stagecoach::kernels
