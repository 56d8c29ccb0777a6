#include "kernels/ops/transpose.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/images/transpose.h"

namespace stagecoach::kernels {
namespace {

template <typename T>
class CpuTranspose final : public TransposeOp {
 public:
  explicit CpuTranspose(const TransposeShape& shape) : shape_(shape) {}

  absl::Status Apply(Stream& stream, const Tensor& x, const Tensor& y) override {
    AsCpu(stream).ParallelFor(static_cast<int>(shape_.matrices), [&](int n, int) {
      const int64_t begin = n * shape_.rows * shape_.columns;
      Transpose(Elements<T>(x) + begin, shape_.columns, shape_.rows, shape_.columns,
                Elements<T>(y) + begin, shape_.rows);
    });
    return absl::OkStatus();
  }

 private:
  const TransposeShape shape_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TransposeOp>> CreateOnCpu(const TransposeShape& shape,
                                                         Device& device) {
  if (!IsExtent(shape.matrices) || !IsExtent(shape.rows) || !IsExtent(shape.columns)) {
    return absl::InvalidArgumentError(absl::StrCat("transpose: extents must be 1 to ", kMaxExtent,
                                                   ": ", shape.matrices, " matrices of ",
                                                   shape.rows, " x ", shape.columns));
  }
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<TransposeOp> {
    return std::make_unique<CpuTranspose<T>>(shape);
  });
}

}  // namespace stagecoach::kernels
