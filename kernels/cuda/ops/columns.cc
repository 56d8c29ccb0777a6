#include "kernels/ops/columns.h"

#include <memory>

#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/columns_kernels.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

class CudaColumns final : public ColumnsOp {
 public:
  CudaColumns(const ColumnsShape& shape, ElementType type)
      : extents_{shape.rows, shape.columns, shape.first, shape.count}, type_(type) {}

  absl::Status Add(Stream& stream, const Tensor& part, float scale, const Tensor& whole) override {
    return CudaStatus(
        LaunchAddColumns(AsCuda(stream).compute(), type_, extents_, part.data, scale, whole.data),
        "LaunchAddColumns");
  }

  absl::Status Take(Stream& stream, const Tensor& whole, float scale, const Tensor& part) override {
    return CudaStatus(
        LaunchTakeColumns(AsCuda(stream).compute(), type_, extents_, whole.data, scale, part.data),
        "LaunchTakeColumns");
  }

 private:
  const ColumnsExtents extents_;
  const ElementType type_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ColumnsOp>> CreateOnCuda(const ColumnsShape& shape, Device& device) {
  RETURN_IF_ERROR(CheckColumns(shape, kMaxCudaExtent));
  return std::unique_ptr<ColumnsOp>(
      std::make_unique<CudaColumns>(shape, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
