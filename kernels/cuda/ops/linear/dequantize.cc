#include "kernels/ops/dequantize.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/linear/dequantize_kernels.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// Returns the parts of the matrix, as many as a kernel takes at a time.
std::vector<Nf4Parts> PartsOf(const QuantizedMatrix& matrix, const QuantizedLayout& layout) {
  std::vector<Nf4Parts> all;
  for (size_t p = 0; p < layout.parts.size(); ++p) {
    const QuantizedLayout::Part& part = layout.parts[p];
    if (all.empty() || all.back().count == Nf4Parts::kMost) {
      all.push_back({.inputs = matrix.inputs,
                     .outputs = matrix.outputs,
                     .first_part = static_cast<int64_t>(p),
                     .first_output = part.first_output});
    }
    Nf4Parts& last = all.back();
    last.parts[last.count++] = {part.first_output, part.first_block, part.first_nested};
    last.end = part.first_output + part.outputs;
  }
  return all;
}

class CudaDequantize final : public DequantizeOp {
 public:
  CudaDequantize(const QuantizedMatrix& matrix, ElementType type)
      : matrix_(matrix), layout_(matrix), parts_(PartsOf(matrix, layout_)), type_(type) {}

  absl::Status Run(Stream& stream, const Tensor& stored, const Tensor& values) override {
    const auto* const from = static_cast<const uint8_t*>(stored.data);
    const auto* const scales = from + layout_.scales;
    const auto* const float_scales = reinterpret_cast<const float*>(scales);
    cudaStream_t const compute = AsCuda(stream).compute();
    if (matrix_.kind == Quantization::kInt8) {
      return CudaStatus(LaunchDequantizeInt8(compute, type_, matrix_.inputs, matrix_.outputs,
                                             reinterpret_cast<const int8_t*>(from + layout_.codes),
                                             float_scales, values.data),
                        "LaunchDequantizeInt8");
    }
    const bool is_nested = matrix_.kind == Quantization::kNf4;
    const Nf4Data data = {.codes = from + layout_.codes,
                          .scales = is_nested ? scales : nullptr,
                          .float_scales = is_nested ? nullptr : float_scales,
                          .nested = reinterpret_cast<const float*>(from + layout_.nested),
                          .offsets = reinterpret_cast<const float*>(from + layout_.offsets)};
    for (const Nf4Parts& parts : parts_) {
      RETURN_IF_ERROR(CudaStatus(LaunchDequantizeNf4(compute, type_, parts, data, values.data),
                                 "LaunchDequantizeNf4"));
    }
    return absl::OkStatus();
  }

 private:
  const QuantizedMatrix matrix_;
  const QuantizedLayout layout_;
  const std::vector<Nf4Parts> parts_;
  const ElementType type_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DequantizeOp>> CreateOnCuda(const DequantizeShape& shape,
                                                           Device& device) {
  RETURN_IF_ERROR(CheckQuantizedMatrix(shape.matrix, kMaxCudaExtent));
  return std::unique_ptr<DequantizeOp>(
      std::make_unique<CudaDequantize>(shape.matrix, ElementTypeOf(device.activation_type())));
}

}  // namespace stagecoach::kernels
