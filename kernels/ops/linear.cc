#include "kernels/ops/linear.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/ops/dequantize.h"
#include "kernels/ops/ops.h"

namespace stagecoach::kernels {
namespace {

// Expands the weight for each product that reads it. Workspace: the values, then the product's.
class ExpandedLinear final : public LinearOp {
 public:
  ExpandedLinear(std::unique_ptr<DequantizeOp> dequantize, std::unique_ptr<LinearOp> product,
                 DType type, const Shape& shape)
      : dequantize_(std::move(dequantize)),
        product_(std::move(product)),
        type_(type),
        shape_(shape),
        value_bytes_((Tensor{nullptr, type, shape}.bytes() + kAlignment - 1) / kAlignment *
                     kAlignment) {}

  int64_t workspace_bytes() const override { return value_bytes_ + product_->workspace_bytes(); }
  bool expands_weight() const override { return true; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                       const Tensor& z, const Tensor& y, std::byte* workspace) override {
    const Tensor values = ValuesIn(workspace);
    RETURN_IF_ERROR(dequantize_->Run(stream, w, values));
    return product_->Forward(stream, x, values, b, z, y, workspace + value_bytes_);
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& y, const Tensor& z,
                             const Tensor& w, const Tensor& dz, const Tensor& dx,
                             std::byte* workspace) override {
    const Tensor values = ValuesIn(workspace);
    if (!dx.empty()) RETURN_IF_ERROR(dequantize_->Run(stream, w, values));
    return product_->BackwardInput(stream, dy, y, z, values, dz, dx, workspace + value_bytes_);
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dz, const Tensor& dw,
                              const Tensor& db, bool accumulate, std::byte* workspace) override {
    return product_->BackwardWeight(stream, x, dz, dw, db, accumulate, workspace + value_bytes_);
  }

 private:
  static constexpr int64_t kAlignment = 256;  // enough for anything behind it

  Tensor ValuesIn(std::byte* workspace) const { return {workspace, type_, shape_}; }

  const std::unique_ptr<DequantizeOp> dequantize_;
  const std::unique_ptr<LinearOp> product_;
  const DType type_;
  const Shape shape_;
  const int64_t value_bytes_;
};

}  // namespace

absl::Status CheckLinear(const LinearShape& shape, int64_t max_extent) {
  for (const int64_t extent : {shape.rows, shape.inputs, shape.outputs}) {
    if (extent >= 1 && extent <= max_extent) continue;
    return absl::InvalidArgumentError(absl::StrCat("linear: extents must be 1 to ", max_extent,
                                                   ": ", shape.rows, " rows, ", shape.inputs,
                                                   " inputs, ", shape.outputs, " outputs"));
  }
  if (!shape.quantized.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(CheckQuantizedMatrix(*shape.quantized, max_extent));
  if (shape.quantized->inputs == shape.inputs && shape.quantized->outputs == shape.outputs) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("linear: takes no quantized weight ",
                                                 shape.quantized->ToString(), " for ", shape.inputs,
                                                 " inputs, ", shape.outputs, " outputs"));
}

absl::StatusOr<std::unique_ptr<LinearOp>> CreateExpandedLinear(const LinearShape& shape,
                                                               Device& device) {
  LinearShape of_values = shape;
  of_values.quantized.reset();
  of_values.weight_is_constant = false;  // it is written right before
  ASSIGN_OR_RETURN(std::unique_ptr<DequantizeOp> dequantize,
                   device.ops().Create(DequantizeShape{*shape.quantized}));
  ASSIGN_OR_RETURN(std::unique_ptr<LinearOp> product, device.ops().Create(of_values));
  return std::unique_ptr<LinearOp>(std::make_unique<ExpandedLinear>(
      std::move(dequantize), std::move(product), device.activation_type(),
      Shape{shape.inputs, shape.outputs}));
}

}  // namespace stagecoach::kernels
