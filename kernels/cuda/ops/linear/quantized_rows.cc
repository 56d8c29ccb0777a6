#include "kernels/cuda/ops/linear/quantized_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/ops/activation_kernels.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/linear/quantized_operand.h"
#include "kernels/cuda/ops/linear/quantized_rows_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/tuner.h"

namespace stagecoach::kernels {
namespace {

class CudaQuantizedRows final : public LinearOp {
 public:
  // `backward`: the operation for the other passes; null if they are not called.
  CudaQuantizedRows(const LinearShape& shape, ElementType type, const Tuner& tuner,
                    std::unique_ptr<LinearOp> backward)
      : shape_(shape),
        matrix_(*shape.quantized),
        type_(type),
        split_(matrix_.is_int8() ? SplitInt8Rows(shape.inputs, tuner.block_shared_bytes())
                                 : SplitNf4Rows(shape.inputs, tuner.block_shared_bytes())),
        starts_early_(tuner.starts_kernels_early()),
        backward_(std::move(backward)) {}

  int64_t workspace_bytes() const override {
    const int64_t sum_bytes = split_.sum_bytes(shape_.rows, shape_.outputs);
    return std::max(sum_bytes == 0 ? 0 : kScratchAlignment + sum_bytes,
                    backward_ == nullptr ? 0 : backward_->workspace_bytes());
  }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                       const Tensor& z, const Tensor& y, std::byte* workspace) override {
    const auto address = reinterpret_cast<uintptr_t>(x.data) | reinterpret_cast<uintptr_t>(w.data);
    if (address % 16 != 0) {
      return absl::InvalidArgumentError("linear: addresses must be multiples of 16");
    }
    cudaStream_t const compute = AsCuda(stream).compute();
    const bool is_activated = shape_.activation != Activation::kNone;
    const void* const bias = shape_.has_bias ? b.data : nullptr;
    auto* const sums = reinterpret_cast<float*>(AlignScratch(workspace));
    const QuantizedRowsArguments arguments = {.split = split_,
                                              .rows = shape_.rows,
                                              .x = x.data,
                                              .bias = is_activated ? nullptr : bias,
                                              .y = y.data,
                                              .partial_sums = split_.pieces == 1 ? nullptr : sums,
                                              .starts_early = starts_early_};
    RETURN_IF_ERROR(CudaStatus(
        matrix_.is_int8() ? LaunchInt8Rows(compute, type_, matrix_.Int8At(w.data), arguments)
                          : LaunchNf4Rows(compute, type_, matrix_.parts().front(),
                                          matrix_.Nf4At(w.data), arguments),
        "quantized rows"));
    if (!is_activated) return absl::OkStatus();
    return CudaStatus(LaunchBias(compute, type_, shape_.activation,
                                 {.rows = shape_.rows,
                                  .columns = shape_.outputs,
                                  .product = y.data,
                                  .bias = bias,
                                  .z = KeepsZ(shape_.activation) ? z.data : nullptr,
                                  .y = y.data}),
                      "LaunchBias");
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& y, const Tensor& z,
                             const Tensor& w, const Tensor& dz, const Tensor& dx,
                             std::byte* workspace) override {
    STAGECOACH_CHECK(backward_ != nullptr, "linear: was to compute forward passes alone");
    return backward_->BackwardInput(stream, dy, y, z, w, dz, dx, workspace);
  }
  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dz, const Tensor& dw,
                              const Tensor& db, bool accumulate, std::byte* workspace) override {
    STAGECOACH_CHECK(backward_ != nullptr, "linear: was to compute forward passes alone");
    return backward_->BackwardWeight(stream, x, dz, dw, db, accumulate, workspace);
  }

 private:
  const LinearShape shape_;
  const QuantizedOperand matrix_;
  const ElementType type_;
  const QuantizedRowsSplit split_;
  const bool starts_early_;
  const std::unique_ptr<LinearOp> backward_;
};

}  // namespace

bool TakesQuantizedRows(const LinearShape& shape) {
  const QuantizedOperand matrix(*shape.quantized);
  return shape.rows <= kMostQuantizedRows &&
         FitsQuantizedRows(shape.inputs, matrix.code_row_bytes()) &&
         (matrix.is_int8() || matrix.parts().size() == 1);
}

absl::StatusOr<std::unique_ptr<LinearOp>> CreateQuantizedRows(const LinearShape& shape,
                                                              Device& device) {
  std::unique_ptr<LinearOp> backward;
  if (!shape.is_only_forward()) {
    ASSIGN_OR_RETURN(backward, CreateExpandedLinear(shape, device));
  }
  return std::unique_ptr<LinearOp>(std::make_unique<CudaQuantizedRows>(
      shape, ElementTypeOf(device.activation_type()), TunerOf(device), std::move(backward)));
}

}  // namespace stagecoach::kernels
