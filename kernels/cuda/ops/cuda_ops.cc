#include "kernels/cuda/ops/cuda_ops.h"

#include "kernels/ops/operations.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<Operation>> CudaOps::CreateOf(const std::type_info& type,
                                                             const void* shape) {
  return CreateListed(AllShapes(), type, shape,
                      [this](const auto& each) { return CreateOnCuda(each, device_); });
}

}  // namespace stagecoach::kernels
