#include "kernels/cuda/ops/images/product_convolution.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/ops/activation_kernels.h"
#include "kernels/cuda/ops/images/convolution_bias.h"
#include "kernels/cuda/ops/images/convolution_kernels.h"
#include "kernels/cuda/ops/images/windows_kernels.h"
#include "kernels/cuda/products/matmul_plan.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kMostWindowInputs = 4;      // half a vector
constexpr int64_t kMostWindowColumns = 2048;  // what LaunchWindows takes
constexpr int64_t kMostWindowStride = 1 << 20;
constexpr int64_t kColumnUnit = 8;  // numbers in a vector of 16 bytes

// The products of matrices x (R, I), w (O, I) and y (R, O). cuBLASLt's matrices have their columns
// together, so that it sees each transposed.
class RowProducts {
 public:
  RowProducts(int64_t R, int64_t I, int64_t O, DType type) : R_(R), I_(I), O_(O), type_(type) {}

  absl::Status PrepareForward(BlasLt& blas, bool has_bias) {
    Product product = ForwardProduct();
    if (has_bias) product.epilogue = Epilogue::kBias;
    absl::StatusOr<const MatmulPlan*> plan = blas.Plan(product);
    if (has_bias && absl::IsUnimplemented(plan.status())) {
      bias_follows_ = true;
      plan = blas.Plan(ForwardProduct());
    }
    RETURN_IF_ERROR(plan.status());
    forward_ = *plan;
    NoteScratch(blas, ForwardProduct());
    return absl::OkStatus();
  }
  absl::Status PrepareBackwardInput(BlasLt& blas) {
    ASSIGN_OR_RETURN(dx_, blas.Plan(BackwardInputProduct()));
    NoteScratch(blas, BackwardInputProduct());
    return absl::OkStatus();
  }
  absl::Status PrepareBackwardWeight(BlasLt& blas) {
    ASSIGN_OR_RETURN(dw_, blas.Plan(BackwardWeightProduct()));
    NoteScratch(blas, BackwardWeightProduct());
    return absl::OkStatus();
  }

  int64_t scratch_bytes() const { return scratch_bytes_; }

  // y = x w^T + b; `bias` is null if there is none.
  absl::Status Forward(cudaStream_t stream, const void* x, const void* w, const void* bias, void* y,
                       std::byte* scratch) const {
    RETURN_IF_ERROR(forward_->Run(
        stream, {.a = w, .b = x, .d = y, .bias = bias_follows_ ? nullptr : bias}, scratch));
    if (!bias_follows_) return absl::OkStatus();
    return CudaStatus(
        LaunchBias(stream, ElementTypeOf(type_), Activation::kNone,
                   {.rows = R_, .columns = O_, .product = y, .bias = bias, .z = nullptr, .y = y}),
        "LaunchBias");
  }
  // dx = dy w, plus `addend` unless it is null.
  absl::Status BackwardInput(cudaStream_t stream, const void* dy, const void* w, const void* addend,
                             void* dx, std::byte* scratch) const {
    return dx_->Run(stream, {.a = w, .b = dy, .d = dx, .addend = addend}, scratch);
  }
  // dw = dy^T x, to what there is if `accumulate`.
  absl::Status BackwardWeight(cudaStream_t stream, const void* x, const void* dy, float* dw,
                              bool accumulate, std::byte* scratch) const {
    return dw_->Run(stream, {.a = x, .b = dy, .d = dw, .addend = accumulate ? dw : nullptr},
                    scratch);
  }

 private:
  // y^T (O, R) = w^T^T (O, I) x^T (I, R)
  Product ForwardProduct() const {
    return {.transpose_a = true,
            .m = O_,
            .n = R_,
            .k = I_,
            .operand_type = type_,
            .result_type = type_};
  }
  // dx^T (I, R) = w^T (I, O) dy^T (O, R)
  Product BackwardInputProduct() const {
    return {.m = I_, .n = R_, .k = O_, .operand_type = type_, .result_type = type_};
  }
  // dw^T (I, O) = x^T (I, R) dy^T^T (R, O)
  Product BackwardWeightProduct() const {
    return {.transpose_b = true,
            .m = I_,
            .n = O_,
            .k = R_,
            .operand_type = type_,
            .result_type = DType::kFloat32};
  }
  void NoteScratch(const BlasLt& blas, const Product& product) {
    scratch_bytes_ = std::max(scratch_bytes_, MatmulWorkspaceBytes(product, blas.compute_major()));
  }

  int64_t R_, I_, O_;
  DType type_;
  const MatmulPlan* forward_ = nullptr;
  const MatmulPlan* dx_ = nullptr;
  const MatmulPlan* dw_ = nullptr;
  bool bias_follows_ = false;  // true if the library cannot fuse the bias with the product
  int64_t scratch_bytes_ = 0;
};

class PointConvolution final : public ConvolutionOp {
 public:
  PointConvolution(const ConvolutionShape& shape, DType type)
      : products_(shape.samples * shape.height * shape.width, shape.inputs, shape.outputs, type),
        has_bias_(shape.has_bias),
        type_(ElementTypeOf(type)),
        bias_gradient_(shape) {}

  absl::Status Prepare(BlasLt& blas) {
    RETURN_IF_ERROR(products_.PrepareForward(blas, has_bias_));
    RETURN_IF_ERROR(products_.PrepareBackwardInput(blas));
    return products_.PrepareBackwardWeight(blas);
  }

  // Sums come after products.
  int64_t workspace_bytes() const override {
    return kScratchAlignment +
           std::max(products_.scratch_bytes(), bias_gradient_.workspace_bytes());
  }

  bool adds_to_dx() const override { return true; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                       const Tensor& y, std::byte* workspace) override {
    return products_.Forward(AsCuda(stream).compute(), x.data, w.data, has_bias_ ? b.data : nullptr,
                             y.data, AlignScratch(workspace));
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& w,
                             const Tensor& dx_addend, const Tensor& dx,
                             std::byte* workspace) override {
    return products_.BackwardInput(AsCuda(stream).compute(), dy.data, w.data, dx_addend.data,
                                   dx.data, AlignScratch(workspace));
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& dw,
                              const Tensor& db, bool accumulate, std::byte* workspace) override {
    cudaStream_t const compute = AsCuda(stream).compute();
    std::byte* const scratch = AlignScratch(workspace);
    RETURN_IF_ERROR(
        products_.BackwardWeight(compute, x.data, dy.data, dw.f32(), accumulate, scratch));
    return bias_gradient_.Run(compute, type_, dy, db, accumulate, scratch);
  }

 private:
  RowProducts products_;
  const bool has_bias_;
  const ElementType type_;
  const BiasGradient bias_gradient_;
};

class WindowConvolution final : public ConvolutionOp {
 public:
  WindowConvolution(const ConvolutionShape& shape, std::unique_ptr<ConvolutionOp> input_gradient,
                    int64_t most_bytes)
      : shape_(shape),
        sample_rows_(shape.output_height() * shape.output_width()),
        columns_(ColumnsOf(shape)),
        input_gradient_(std::move(input_gradient)),
        bias_gradient_(shape),
        part_samples_(std::clamp<int64_t>(most_bytes / SampleBytes(shape), 1, shape.samples)),
        last_samples_((shape.samples - 1) % part_samples_ + 1) {}

  static int64_t ColumnsOf(const ConvolutionShape& shape) {
    const int64_t numbers = shape.inputs * shape.kernel * shape.kernel;
    return (numbers + kColumnUnit - 1) / kColumnUnit * kColumnUnit;
  }

  // Returns the bytes of a sample's windows.
  static int64_t SampleBytes(const ConvolutionShape& shape) {
    return shape.output_height() * shape.output_width() * ColumnsOf(shape) * kElementBytes;
  }

  absl::Status Prepare(BlasLt& blas) {
    part_.emplace(ProductsOf(part_samples_));
    last_.emplace(ProductsOf(last_samples_));
    int64_t scratch_bytes = bias_gradient_.workspace_bytes();
    for (RowProducts* const products : {&*part_, &*last_}) {
      RETURN_IF_ERROR(products->PrepareForward(blas, shape_.has_bias));
      RETURN_IF_ERROR(products->PrepareBackwardWeight(blas));
      scratch_bytes = std::max(scratch_bytes, products->scratch_bytes());
    }
    windows_at_ = Take(part_samples_ * SampleBytes(shape_));
    weights_at_ = Take(shape_.outputs * columns_ * SizeOf(DType::kFloat32));
    scratch_at_ = Take(scratch_bytes);
    return absl::OkStatus();
  }

  int64_t workspace_bytes() const override {
    return std::max(kScratchAlignment + workspace_bytes_, input_gradient_->workspace_bytes());
  }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                       const Tensor& y, std::byte* workspace) override {
    cudaStream_t const compute = AsCuda(stream).compute();
    std::byte* const areas = AlignScratch(workspace);
    const void* const bias = shape_.has_bias ? b.data : nullptr;
    // A weight is a row, too, but without the zeros at the end.
    RETURN_IF_ERROR(CudaStatus(LaunchCopyColumns(compute, {.rows = shape_.outputs,
                                                           .from_columns = numbers(),
                                                           .to_columns = columns_,
                                                           .from_type = kType,
                                                           .to_type = kType,
                                                           .from = w.data,
                                                           .to = areas + weights_at_}),
                               "LaunchCopyColumns"));
    return ForEachPart(compute, x, y, areas, [&](const RowProducts& products, std::byte* part_y) {
      return products.Forward(compute, areas + windows_at_, areas + weights_at_, bias, part_y,
                              areas + scratch_at_);
    });
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& w,
                             const Tensor& dx_addend, const Tensor& dx,
                             std::byte* workspace) override {
    return input_gradient_->BackwardInput(stream, dy, w, dx_addend, dx, workspace);
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& dw,
                              const Tensor& db, bool accumulate, std::byte* workspace) override {
    cudaStream_t const compute = AsCuda(stream).compute();
    std::byte* const areas = AlignScratch(workspace);
    auto* const sums = reinterpret_cast<float*>(areas + weights_at_);
    bool adds = false;
    RETURN_IF_ERROR(ForEachPart(
        compute, x, dy, areas, [&](const RowProducts& products, const std::byte* part_dy) {
          return products.BackwardWeight(compute, areas + windows_at_, part_dy, sums,
                                         std::exchange(adds, true), areas + scratch_at_);
        }));
    // As if all numbers of a window were inputs of a kernel of one element: this leaves out zeros.
    RETURN_IF_ERROR(CudaStatus(LaunchChannelsFirst(compute,
                                                   {.outputs = shape_.outputs,
                                                    .inputs = numbers(),
                                                    .window = 1,
                                                    .padded_outputs = shape_.outputs,
                                                    .padded_inputs = columns_},
                                                   sums, dw.f32(), accumulate),
                               "LaunchChannelsFirst"));
    return bias_gradient_.Run(compute, kType, dy, db, accumulate, areas + scratch_at_);
  }

 private:
  static constexpr ElementType kType = ElementType::kBfloat16;
  static constexpr int64_t kElementBytes = SizeOf(DType::kBfloat16);

  int64_t numbers() const { return shape_.inputs * shape_.kernel * shape_.kernel; }
  RowProducts ProductsOf(int64_t samples) const {
    return {samples * sample_rows_, columns_, shape_.outputs, DType::kBfloat16};
  }
  int64_t Take(int64_t bytes) {
    return std::exchange(workspace_bytes_, workspace_bytes_ + AlignScratch(bytes));
  }

  // Writes the windows of one part of the samples after another, and calls
  // `multiply(products, y)` with the products of its extents and with its part of y or dy.
  template <typename Multiply>
  absl::Status ForEachPart(cudaStream_t stream, const Tensor& x, const Tensor& y, std::byte* areas,
                           Multiply multiply) const {
    const int64_t image_bytes = shape_.height * shape_.width * shape_.inputs * kElementBytes;
    const int64_t output_bytes = sample_rows_ * shape_.outputs * kElementBytes;
    for (int64_t first = 0; first < shape_.samples; first += part_samples_) {
      const bool is_last = first + part_samples_ >= shape_.samples;
      RETURN_IF_ERROR(CudaStatus(
          LaunchWindows(stream, {.samples = is_last ? last_samples_ : part_samples_,
                                 .inputs = static_cast<int>(shape_.inputs),
                                 .height = static_cast<int>(shape_.height),
                                 .width = static_cast<int>(shape_.width),
                                 .kernel = static_cast<int>(shape_.kernel),
                                 .stride = static_cast<int>(shape_.stride),
                                 .padding = static_cast<int>(shape_.padding),
                                 .output_height = static_cast<int>(shape_.output_height()),
                                 .output_width = static_cast<int>(shape_.output_width()),
                                 .columns = static_cast<int>(columns_),
                                 .images = static_cast<std::byte*>(x.data) + first * image_bytes,
                                 .windows = areas + windows_at_}),
          "LaunchWindows"));
      RETURN_IF_ERROR(multiply(is_last ? *last_ : *part_,
                               static_cast<std::byte*>(y.data) + first * output_bytes));
    }
    return absl::OkStatus();
  }

  const ConvolutionShape shape_;
  const int64_t sample_rows_;  // P Q
  const int64_t columns_;      // of the matrix of windows
  const std::unique_ptr<ConvolutionOp> input_gradient_;
  const BiasGradient bias_gradient_;
  const int64_t part_samples_, last_samples_;  // of a part, and of the last one
  std::optional<RowProducts> part_, last_;
  // Offsets in the workspace: the matrix of windows; weights with as many columns, or sums of their
  // gradient; scratch of products and sums.
  int64_t windows_at_ = 0, weights_at_ = 0, scratch_at_ = 0;
  int64_t workspace_bytes_ = 0;
};

}  // namespace

bool IsPointConvolution(const ConvolutionShape& shape) {
  return shape.kernel == 1 && shape.stride == 1 && shape.padding == 0 && shape.groups == 1;
}

absl::StatusOr<std::unique_ptr<ConvolutionOp>> CreatePointConvolution(const ConvolutionShape& shape,
                                                                      DType type, BlasLt& blas) {
  auto op = std::make_unique<PointConvolution>(shape, type);
  RETURN_IF_ERROR(
      base::Annotate(op->Prepare(blas), absl::StrCat("convolution, ", shape.inputs, " inputs, ",
                                                     shape.outputs, " outputs, kernel 1")));
  return op;
}

bool IsWindowConvolution(const ConvolutionShape& shape, DType type) {
  return type == DType::kBfloat16 && shape.groups == 1 && shape.kernel > 1 &&
         shape.inputs <= kMostWindowInputs && shape.outputs % kColumnUnit == 0 &&
         shape.kernel <= kMostWindowColumns && shape.stride <= kMostWindowStride &&
         WindowConvolution::ColumnsOf(shape) <= kMostWindowColumns &&
         WindowConvolution::SampleBytes(shape) <= kMostWindowBytes;
}

absl::StatusOr<std::unique_ptr<ConvolutionOp>> CreateWindowConvolution(
    const ConvolutionShape& shape, BlasLt& blas, std::unique_ptr<ConvolutionOp> input_gradient,
    int64_t most_bytes) {
  auto op = std::make_unique<WindowConvolution>(shape, std::move(input_gradient), most_bytes);
  RETURN_IF_ERROR(base::Annotate(
      op->Prepare(blas), absl::StrCat("convolution, ", shape.inputs, " inputs, ", shape.outputs,
                                      " outputs, kernel ", shape.kernel)));
  return op;
}

}  // namespace stagecoach::kernels
