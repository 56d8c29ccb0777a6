#include "kernels/ops/convolution.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/images/convolution_bias.h"
#include "kernels/cuda/ops/images/convolution_cudnn.h"
#include "kernels/cuda/ops/images/convolution_kernels.h"
#include "kernels/cuda/ops/images/product_convolution.h"
#include "kernels/cuda/products/blas_lt.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

using cudnn::ConvolutionPass;

// Names of extents are those of kernels/ops/convolution.h.

// Any other convolution, by cuDNN. Without groups, its engines get channels that fill vectors of 16
// bytes, for which they are made: tensors with other channels are copied. With kFloat32 this is not
// needed, because its engines take any channels. With groups, no engine sums gradients of weights
// from bfloat16 in float32: copies in float32 have the same products, also if an engine rounds
// operands to TF32.
class CudnnConvolution final : public ConvolutionOp {
 public:
  CudnnConvolution(const ConvolutionShape& shape, Precision precision)
      : shape_(shape),
        type_(ElementTypeOf(ActivationType(precision))),
        precision_(precision),
        copies_floats_(type_ == ElementType::kBfloat16 && shape.groups > 1),
        extents_(ExtentsOf(shape, precision)),
        bias_gradient_(shape) {}

  // With `only_dx`, BackwardInput alone is called.
  absl::Status Prepare(CudnnConvolutions& convolutions, bool only_dx) {
    cudnn::ConvolutionExtents forward = extents_, sums = extents_;
    forward.has_bias = shape_.has_bias;
    if (copies_floats_) sums.type = cudnn::DataType::kFloat;
    ASSIGN_OR_RETURN(dx_, convolutions.Plan(ConvolutionPass::kBackwardInput, extents_, precision_));
    if (!only_dx) {
      ASSIGN_OR_RETURN(forward_, convolutions.Plan(ConvolutionPass::kForward, forward, precision_));
      ASSIGN_OR_RETURN(dw_, convolutions.Plan(ConvolutionPass::kBackwardWeight, sums,
                                              copies_floats_ ? Precision::kTf32 : precision_));
    }
    const int64_t float_bytes = SizeOf(DType::kFloat32);
    const int64_t copy_bytes = copies_floats_ ? float_bytes : element_bytes();
    weights_at_ = Take(extents_.weight_elements() * float_bytes);
    if (copies_images()) images_at_ = Take(extents_.image_elements() * copy_bytes);
    if (copies_outputs()) outputs_at_ = Take(extents_.output_elements() * copy_bytes);
    if (copies_bias()) bias_at_ = Take(extents_.outputs * element_bytes());
    // Sums come after the engine.
    scratch_at_ =
        Take(std::max(ConvolutionScratchBytes(extents_), bias_gradient_.workspace_bytes()));
    return absl::OkStatus();
  }

  int64_t workspace_bytes() const override { return kScratchAlignment + workspace_bytes_; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                       const Tensor& y, std::byte* workspace) override {
    RETURN_IF_ERROR(CheckAddresses({&x, &w, &b, &y}));
    const Call call(stream, workspace);
    ConvolutionPlan::Operands operands = {.scratch = call.At(scratch_at_)};
    ASSIGN_OR_RETURN(operands.images,
                     Padded(call, x, image_rows(), shape_.inputs, extents_.inputs, images_at_));
    ASSIGN_OR_RETURN(operands.weights, LastChannels(call, w));
    if (shape_.has_bias) {
      ASSIGN_OR_RETURN(operands.bias,
                       Padded(call, b, 1, shape_.outputs, extents_.outputs, bias_at_));
    }
    operands.outputs = pads_outputs() ? call.At(outputs_at_) : y.data;
    RETURN_IF_ERROR(forward_->Run(call.stream, operands));
    return CutTo(call, y, operands.outputs, output_rows(), extents_.outputs, shape_.outputs);
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& w,
                             const Tensor& /*dx_addend*/, const Tensor& dx,
                             std::byte* workspace) override {
    RETURN_IF_ERROR(CheckAddresses({&dy, &w, &dx}));
    const Call call(stream, workspace);
    ConvolutionPlan::Operands operands = {.scratch = call.At(scratch_at_)};
    ASSIGN_OR_RETURN(operands.outputs, Padded(call, dy, output_rows(), shape_.outputs,
                                              extents_.outputs, outputs_at_));
    ASSIGN_OR_RETURN(operands.weights, LastChannels(call, w));
    operands.images = pads_images() ? call.At(images_at_) : dx.data;
    RETURN_IF_ERROR(dx_->Run(call.stream, operands));
    return CutTo(call, dx, operands.images, image_rows(), extents_.inputs, shape_.inputs);
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& dw,
                              const Tensor& db, bool accumulate, std::byte* workspace) override {
    RETURN_IF_ERROR(CheckAddresses({&x, &dy, &dw}));
    const Call call(stream, workspace);
    ConvolutionPlan::Operands operands = {.scratch = call.At(scratch_at_)};
    if (copies_floats_) {
      ASSIGN_OR_RETURN(operands.images, InFloats(call, x, image_rows(), shape_.inputs, images_at_));
      ASSIGN_OR_RETURN(operands.outputs,
                       InFloats(call, dy, output_rows(), shape_.outputs, outputs_at_));
    } else {
      ASSIGN_OR_RETURN(operands.images,
                       Padded(call, x, image_rows(), shape_.inputs, extents_.inputs, images_at_));
      ASSIGN_OR_RETURN(operands.outputs, Padded(call, dy, output_rows(), shape_.outputs,
                                                extents_.outputs, outputs_at_));
    }
    const bool in_place = !reorders_weights() && !accumulate;
    operands.weights = in_place ? dw.data : call.At(weights_at_);
    RETURN_IF_ERROR(dw_->Run(call.stream, operands));
    if (!in_place) {
      RETURN_IF_ERROR(CudaStatus(
          LaunchChannelsFirst(call.stream, WeightOrder(),
                              static_cast<const float*>(operands.weights), dw.f32(), accumulate),
          "LaunchChannelsFirst"));
    }
    return bias_gradient_.Run(call.stream, type_, dy, db, accumulate, call.At(scratch_at_));
  }

 private:
  // The stream and memory of a call.
  struct Call {
    Call(Stream& of, std::byte* at) : stream(AsCuda(of).compute()), workspace(AlignScratch(at)) {}
    std::byte* At(int64_t place) const { return workspace + place; }

    cudaStream_t const stream;
    std::byte* const workspace;
  };

  static cudnn::ConvolutionExtents ExtentsOf(const ConvolutionShape& shape, Precision precision) {
    const DType type = ActivationType(precision);
    const bool pads = shape.groups == 1 && precision != Precision::kFloat32;
    const int64_t unit = pads ? 16 / SizeOf(type) : 1;
    const auto padded = [&](int64_t channels) { return (channels + unit - 1) / unit * unit; };
    return {.samples = shape.samples,
            .inputs = padded(shape.inputs),
            .height = shape.height,
            .width = shape.width,
            .outputs = padded(shape.outputs),
            .output_height = shape.output_height(),
            .output_width = shape.output_width(),
            .kernel = shape.kernel,
            .stride = shape.stride,
            .padding = shape.padding,
            .groups = shape.groups,
            .type = type == DType::kBfloat16 ? cudnn::DataType::kBfloat16 : cudnn::DataType::kFloat,
            .has_bias = false};
  }

  bool pads_images() const { return extents_.inputs != shape_.inputs; }
  bool pads_outputs() const { return extents_.outputs != shape_.outputs; }
  bool copies_images() const { return pads_images() || copies_floats_; }
  bool copies_outputs() const { return pads_outputs() || copies_floats_; }
  bool copies_bias() const { return shape_.has_bias && pads_outputs(); }
  // Otherwise channels-first and channels-last weights are the same memory.
  bool reorders_weights() const { return shape_.kernel > 1 || pads_images() || pads_outputs(); }
  int64_t image_rows() const { return shape_.samples * shape_.height * shape_.width; }
  int64_t output_rows() const {
    return shape_.samples * extents_.output_height * extents_.output_width;
  }
  int64_t element_bytes() const { return SizeOf(ActivationType(precision_)); }

  int64_t Take(int64_t bytes) {
    return std::exchange(workspace_bytes_, workspace_bytes_ + AlignScratch(bytes));
  }

  WeightOrderArguments WeightOrder() const {
    return {.outputs = shape_.outputs,
            .inputs = shape_.inputs / shape_.groups,
            .window = shape_.kernel * shape_.kernel,
            .padded_outputs = extents_.outputs,
            .padded_inputs = extents_.inputs / shape_.groups};
  }

  static absl::Status CheckAddresses(std::initializer_list<const Tensor*> tensors) {
    for (const Tensor* const tensor : tensors) {
      if (reinterpret_cast<uintptr_t>(tensor->data) % 16 == 0) continue;
      return absl::InvalidArgumentError("convolution: addresses must be multiples of 16");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<const void*> LastChannels(const Call& call, const Tensor& w) const {
    if (!reorders_weights()) return w.data;
    std::byte* const place = call.At(weights_at_);
    RETURN_IF_ERROR(CudaStatus(LaunchChannelsLast(call.stream, type_, WeightOrder(), w.data, place),
                               "LaunchChannelsLast"));
    return place;
  }

  // Returns the rows of `tensor`, or a copy with `padded` columns.
  absl::StatusOr<const void*> Padded(const Call& call, const Tensor& tensor, int64_t rows,
                                     int64_t columns, int64_t padded, int64_t at) const {
    if (columns == padded) return tensor.data;
    RETURN_IF_ERROR(Copy(call, {.rows = rows,
                                .from_columns = columns,
                                .to_columns = padded,
                                .from_type = type_,
                                .to_type = type_,
                                .from = tensor.data,
                                .to = call.At(at)}));
    return call.At(at);
  }
  // Copies the wider matrix `from` into `tensor`, unless it is there already.
  absl::Status CutTo(const Call& call, const Tensor& tensor, const void* from, int64_t rows,
                     int64_t padded, int64_t columns) const {
    if (columns == padded) return absl::OkStatus();
    return Copy(call, {.rows = rows,
                       .from_columns = padded,
                       .to_columns = columns,
                       .from_type = type_,
                       .to_type = type_,
                       .from = from,
                       .to = tensor.data});
  }
  absl::StatusOr<const void*> InFloats(const Call& call, const Tensor& tensor, int64_t rows,
                                       int64_t columns, int64_t at) const {
    RETURN_IF_ERROR(Copy(call, {.rows = rows,
                                .from_columns = columns,
                                .to_columns = columns,
                                .from_type = type_,
                                .to_type = ElementType::kFloat32,
                                .from = tensor.data,
                                .to = call.At(at)}));
    return call.At(at);
  }
  static absl::Status Copy(const Call& call, const CopyColumnsArguments& arguments) {
    return CudaStatus(LaunchCopyColumns(call.stream, arguments), "LaunchCopyColumns");
  }

  const ConvolutionShape shape_;
  const ElementType type_;
  const Precision precision_;
  const bool copies_floats_;
  const cudnn::ConvolutionExtents extents_;  // as the engines see it
  const BiasGradient bias_gradient_;
  const ConvolutionPlan* forward_ = nullptr;
  const ConvolutionPlan* dx_ = nullptr;
  const ConvolutionPlan* dw_ = nullptr;
  // Offsets in the workspace, from its first multiple of kScratchAlignment on: weights with their
  // channels last, or sums of their gradient; copies of x or dx and of y or dy, and of the bias;
  // the engine's scratch.
  int64_t weights_at_ = 0, images_at_ = 0, outputs_at_ = 0, bias_at_ = 0, scratch_at_ = 0;
  int64_t workspace_bytes_ = 0;
};

// Returns whether any grid of the kernels here counts its blocks in 31 bits.
bool AreCudaExtents(const ConvolutionShape& shape) {
  constexpr int64_t kMostNumbers = int64_t{1} << 38;
  const auto are_few = [&](std::initializer_list<int64_t> extents, int64_t most) {
    double numbers = 1.0;
    for (const int64_t extent : extents) numbers *= static_cast<double>(extent);
    return numbers <= static_cast<double>(most);
  };
  const int64_t P = shape.output_height(), Q = shape.output_width();
  return are_few({shape.samples, shape.height, shape.width}, kMaxCudaExtent) &&
         are_few({shape.samples, P, Q}, kMaxCudaExtent) &&
         are_few({shape.samples, shape.height, shape.width, shape.inputs + 8}, kMostNumbers) &&
         are_few({shape.samples, P, Q, shape.outputs + 8}, kMostNumbers) &&
         are_few({shape.outputs + 8, shape.inputs + 8, shape.kernel, shape.kernel}, kMostNumbers);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConvolutionOp>> CreateOnCuda(const ConvolutionShape& shape,
                                                            Device& device) {
  RETURN_IF_ERROR(CheckConvolution(shape, kMaxCudaExtent));
  if (!AreCudaExtents(shape)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "convolution: on CUDA devices, samples x height x width must be at most ", kMaxCudaExtent,
        ", before and after, and images and weights have at most 2^38 numbers"));
  }
  if (IsPointConvolution(shape)) {
    return CreatePointConvolution(shape, device.activation_type(), BlasOf(device));
  }
  const bool has_windows = IsWindowConvolution(shape, device.activation_type());
  auto op = std::make_unique<CudnnConvolution>(shape, device.precision());
  RETURN_IF_ERROR(op->Prepare(CudnnConvolutionsOf(device), has_windows));
  if (!has_windows) return op;
  return CreateWindowConvolution(shape, BlasOf(device), std::move(op));
}

}  // namespace stagecoach::kernels
