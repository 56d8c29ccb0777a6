#include <memory>

#include "absl/status/status.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/elementwise_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaElementwise final : public ElementwiseOps {
 public:
  absl::Status Add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& y) override {
    return CudaStatus(LaunchAdd(AsCuda(stream).compute(), ElementTypeOf(y.dtype), y.elements(),
                                a.data, b.data, y.data),
                      "LaunchAdd");
  }

  absl::Status Copy(Stream& stream, const Tensor& x, const Tensor& y) override {
    return stream.Copy(y.data, x.data, y.bytes());
  }
};

}  // namespace

std::unique_ptr<ElementwiseOps> CreateCudaElementwise() {
  return std::make_unique<CudaElementwise>();
}

}  // namespace stagecoach::kernels
