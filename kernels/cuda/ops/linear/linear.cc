#include "kernels/ops/linear.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/extents.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/ops/activation_kernels.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/ops/linear/column_sums_kernels.h"
#include "kernels/cuda/ops/linear/few_rows.h"
#include "kernels/cuda/ops/linear/few_rows_kernels.h"
#include "kernels/cuda/ops/linear/quantized_rows.h"
#include "kernels/cuda/products/blas_lt.h"
#include "kernels/cuda/products/matmul_plan.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// Names of extents are those of kernels/ops/linear.h: R rows, I inputs, O outputs.
class CudaLinear final : public LinearOp {
 public:
  CudaLinear(const LinearShape& shape, DType type)
      : R_(shape.rows),
        I_(shape.inputs),
        O_(shape.outputs),
        activation_(shape.activation),
        has_bias_(shape.has_bias),
        forward_only_(shape.forward_only),
        weight_is_constant_(shape.weight_is_constant),
        type_(type) {}

  absl::Status Prepare(BlasLt& blas, Tuner& tuner) {
    RETURN_IF_ERROR(PrepareForward(blas));
    // The workspace covers all products, used or not: plans of memory must not depend on what the
    // library can do.
    const auto cover = [&](const Product& product) {
      const int64_t bytes = MatmulWorkspaceBytes(product, blas.compute_major());
      product_bytes_ = std::max(product_bytes_, bytes);
      return bytes;
    };
    cover(ForwardProduct());
    int64_t sum_bytes = 0;
    if (!forward_only_) {
      ASSIGN_OR_RETURN(dx_product_, blas.Plan(BackwardInputProduct()));
      ASSIGN_OR_RETURN(dw_product_, blas.Plan(BackwardWeightProduct()));
      cover(BackwardInputProduct());
      aside_bytes_ = kScratchAlignment + cover(BackwardWeightProduct());
      if (has_bias_) sum_bytes = PartialSumsBytes(R_, O_);
    }
    workspace_bytes_ = kScratchAlignment + product_bytes_ + AlignScratch(sum_bytes);
    return PrepareFewRows(tuner);
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }
  int64_t aside_bytes() const override { return aside_bytes_; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                       const Tensor& z, const Tensor& y, std::byte* workspace) override {
    const FewRowsArguments arguments = ForwardArguments(x, w, b, z, y);
    const cudaStream_t compute = AsCuda(stream).compute();
    if (few_rows_ == nullptr) return LibraryForward(compute, arguments, workspace);
    return LaunchFewRows(compute, arguments);
  }

  bool takes_neighbors() const override { return takes_neighbors_; }

  absl::Status ForwardWithNeighbors(Stream& stream, const LinearNeighbors& neighbors,
                                    const Tensor& x, const Tensor& w, const Tensor& b,
                                    const Tensor& z, const Tensor& y,
                                    std::byte* workspace) override {
    if (!takes_neighbors_) {
      return LinearOp::ForwardWithNeighbors(stream, neighbors, x, w, b, z, y, workspace);
    }
    FewRowsArguments arguments = ForwardArguments(x, w, b, z, y);
    if (neighbors.norm.has_value()) arguments.norm = ArgumentsOf(*neighbors.norm);
    arguments.addend = neighbors.addend.data;
    arguments.has_relu = neighbors.has_relu;
    return LaunchFewRows(AsCuda(stream).compute(), arguments);
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& y, const Tensor& z,
                             const Tensor& w, const Tensor& dz, const Tensor& dx,
                             std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    RETURN_IF_ERROR(ActivationGradient(compute, dy, y, z, dz, /*partial_sums=*/nullptr));
    return InputProduct(compute, activation_ == Activation::kNone ? dy : dz, w, dx, workspace);
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dz, const Tensor& dw,
                              const Tensor& db, bool accumulate, std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    RETURN_IF_ERROR(WeightProduct(compute, x, dz, dw, accumulate, ProductWorkspace(workspace)));
    return BiasGradient(compute, dz, db, accumulate, /*has_partial_sums=*/false, workspace);
  }

  absl::Status Backward(Stream& stream, const Tensor& dy, const Tensor& x, const Tensor& y,
                        const Tensor& z, const Tensor& w, const Tensor& dz, const Tensor& dx,
                        const Tensor& dw, const Tensor& db, bool accumulate, std::byte* workspace,
                        std::byte* aside) override {
    CudaStream& cuda = AsCuda(stream);
    const cudaStream_t compute = cuda.compute();
    const bool sums_beside = has_bias_ && activation_ != Activation::kNone;
    RETURN_IF_ERROR(ActivationGradient(compute, dy, y, z, dz,
                                       sums_beside ? SumsWorkspace(workspace) : nullptr));
    const auto weight_product = [&](std::byte* scratch) {
      return WeightProduct(cuda.compute(), x, dz, dw, accumulate, scratch);
    };
    if (aside != nullptr) {
      RETURN_IF_ERROR(cuda.Aside([&] { return weight_product(AlignScratch(aside)); }));
    }
    RETURN_IF_ERROR(
        InputProduct(compute, activation_ == Activation::kNone ? dy : dz, w, dx, workspace));
    if (aside == nullptr) RETURN_IF_ERROR(weight_product(ProductWorkspace(workspace)));
    return BiasGradient(compute, dz, db, accumulate, sums_beside, workspace);
  }

 private:
  FewRowsArguments Extents() const { return {.rows = R_, .inputs = I_, .outputs = O_}; }

  FewRowsArguments ForwardArguments(const Tensor& x, const Tensor& w, const Tensor& b,
                                    const Tensor& z, const Tensor& y) const {
    FewRowsArguments arguments = Extents();
    arguments.x = x.data;
    arguments.w = w.data;
    arguments.bias = has_bias_ ? b.data : nullptr;
    arguments.z = KeepsZ(activation_) ? z.data : nullptr;
    arguments.y = y.data;
    arguments.starts_early = starts_early_;
    arguments.loads_weights_early = weight_is_constant_;
    return arguments;
  }

  absl::Status LaunchFewRows(cudaStream_t stream, const FewRowsArguments& arguments) const {
    if (!AreAligned(arguments)) {
      return absl::InvalidArgumentError("linear: addresses must be multiples of 16");
    }
    return CudaStatus(few_rows_->launch(stream, activation_, arguments), "few rows");
  }

  absl::Status LibraryForward(cudaStream_t stream, const FewRowsArguments& a,
                              std::byte* workspace) const {
    MatmulPlan::Operands operands = {.a = a.w, .b = a.x, .d = a.y};
    if (!bias_follows_) {
      operands.bias = a.bias;
      operands.aux = a.z;
    }
    RETURN_IF_ERROR(forward_product_->Run(stream, operands, ProductWorkspace(workspace)));
    return bias_follows_ ? FollowWithBias(stream, a.y, a.bias, a.z) : absl::OkStatus();
  }

  // y^T (O, R) = w^T (O, I) x^T (I, R)
  Product ForwardProduct() const {
    return {.m = O_, .n = R_, .k = I_, .operand_type = type_, .result_type = type_};
  }
  // dx^T (I, R) = w^T^T (I, O) dz^T (O, R)
  Product BackwardInputProduct() const {
    return {.transpose_a = true,
            .m = I_,
            .n = R_,
            .k = O_,
            .operand_type = type_,
            .result_type = type_};
  }
  // dw^T (O, I) = dz^T (O, R) x^T^T (R, I)
  Product BackwardWeightProduct() const {
    return {.transpose_b = true,
            .m = O_,
            .n = I_,
            .k = R_,
            .operand_type = type_,
            .result_type = DType::kFloat32};
  }

  // Computes dz, with the sums of blocks of its rows unless `partial_sums` is null; nothing with
  // kNone.
  absl::Status ActivationGradient(cudaStream_t stream, const Tensor& dy, const Tensor& y,
                                  const Tensor& z, const Tensor& dz, float* partial_sums) const {
    if (activation_ == Activation::kNone) return absl::OkStatus();
    const ActivationBackwardArguments arguments = {.rows = R_,
                                                   .columns = O_,
                                                   .dy = dy.data,
                                                   .known = KeepsZ(activation_) ? z.data : y.data,
                                                   .dz = dz.data,
                                                   .partial_sums = partial_sums};
    return CudaStatus(LaunchActivationBackward(stream, element_type(), activation_, arguments),
                      "LaunchActivationBackward");
  }

  absl::Status InputProduct(cudaStream_t stream, const Tensor& dz, const Tensor& w,
                            const Tensor& dx, std::byte* workspace) const {
    if (dx.empty()) return absl::OkStatus();
    return dx_product_->Run(stream, {.a = w.data, .b = dz.data, .d = dx.data},
                            ProductWorkspace(workspace));
  }

  absl::Status WeightProduct(cudaStream_t stream, const Tensor& x, const Tensor& dz,
                             const Tensor& dw, bool accumulate, std::byte* scratch) const {
    return dw_product_->Run(
        stream, {.a = dz.data, .b = x.data, .d = dw.data, .addend = accumulate ? dw.data : nullptr},
        scratch);
  }

  // Computes db, whose partial sums may already be in the workspace.
  absl::Status BiasGradient(cudaStream_t stream, const Tensor& dz, const Tensor& db,
                            bool accumulate, bool has_partial_sums, std::byte* workspace) const {
    if (!has_bias_) return absl::OkStatus();
    if (has_partial_sums) {
      return CudaStatus(LaunchTotalSums(stream, {.rows = R_,
                                                 .columns = O_,
                                                 .partial_sums = SumsWorkspace(workspace),
                                                 .sums = db.f32(),
                                                 .accumulate = accumulate}),
                        "LaunchTotalSums");
    }
    return CudaStatus(LaunchColumnSums(stream, element_type(),
                                       {.rows = R_,
                                        .columns = O_,
                                        .matrix = dz.data,
                                        .sums = db.f32(),
                                        .accumulate = accumulate,
                                        .workspace = SumsWorkspace(workspace)}),
                      "LaunchColumnSums");
  }

  // Returns what the library can fuse with the product.
  static Epilogue EpilogueOf(Activation activation) {
    switch (activation) {
      case Activation::kNone:
        return Epilogue::kBias;
      case Activation::kRelu:
        return Epilogue::kReluBias;
      case Activation::kGelu:
        return Epilogue::kGeluAuxBias;
      case Activation::kGeluExact:
      case Activation::kTanh:
      case Activation::kSigmoid:
        return Epilogue::kNone;
    }
    base::PrintAndAbort(__FILE__, __LINE__, "EpilogueOf", "unknown activation");
  }

  // Returns the library's fused product if it is as exact as the type.
  absl::StatusOr<const MatmulPlan*> PlanFused(BlasLt& blas) const {
    const Epilogue epilogue = EpilogueOf(activation_);
    if (epilogue == Epilogue::kNone || !has_bias_) {
      return absl::UnimplementedError("nothing of this is asked of the library");
    }
    if (epilogue == Epilogue::kGeluAuxBias && type_ == DType::kFloat32) {
      return absl::UnimplementedError("the library's GELU takes a tanh of eleven bits");
    }
    Product product = ForwardProduct();
    product.epilogue = epilogue;
    const Followed::Function apart = [this](cudaStream_t stream,
                                            const MatmulPlan::Operands& operands) {
      return FollowWithBias(stream, operands.d, operands.bias, operands.aux);
    };
    return blas.Plan(product, apart);
  }

  absl::Status FollowWithBias(cudaStream_t stream, void* y, const void* bias, void* z) const {
    return CudaStatus(LaunchBias(stream, element_type(), activation_,
                                 {.rows = R_,
                                  .columns = O_,
                                  .product = y,
                                  .bias = bias,
                                  .z = KeepsZ(activation_) ? z : nullptr,
                                  .y = y}),
                      "LaunchBias");
  }

  absl::Status PrepareForward(BlasLt& blas) {
    absl::StatusOr<const MatmulPlan*> plan = PlanFused(blas);
    if (absl::IsUnimplemented(plan.status())) {
      bias_follows_ = has_bias_ || activation_ != Activation::kNone;
      plan = blas.Plan(ForwardProduct());
    }
    RETURN_IF_ERROR(plan.status());
    forward_product_ = *plan;
    return absl::OkStatus();
  }

  absl::Status PrepareFewRows(Tuner& tuner) {
    if (!FitsFewRows(element_type(), Extents())) return absl::OkStatus();
    starts_early_ = tuner.starts_kernels_early();
    const auto library = [this](cudaStream_t stream, const FewRowsArguments& a,
                                std::byte* workspace) {
      return LibraryForward(stream, a, workspace);
    };
    ASSIGN_OR_RETURN(
        few_rows_,
        ChooseFewRows(tuner,
                      {.rows = R_,
                       .inputs = I_,
                       .outputs = O_,
                       .activation = activation_,
                       .has_bias = has_bias_},
                      {.run = library, .workspace_bytes = kScratchAlignment + product_bytes_}));
    if (few_rows_ == nullptr) return absl::OkStatus();
    takes_neighbors_ = forward_only_ && FewRowsSharedBytes(*few_rows_, Extents(), true) <=
                                            tuner.block_shared_bytes();
    return absl::OkStatus();
  }

  ElementType element_type() const { return ElementTypeOf(type_); }

  std::byte* ProductWorkspace(std::byte* workspace) const { return AlignScratch(workspace); }
  float* SumsWorkspace(std::byte* workspace) const {
    return reinterpret_cast<float*>(AlignScratch(workspace) + product_bytes_);
  }

  const int64_t R_, I_, O_;
  const Activation activation_;
  const bool has_bias_;
  const bool forward_only_, weight_is_constant_;
  const DType type_;
  const MatmulPlan* forward_product_ = nullptr;
  const MatmulPlan* dx_product_ = nullptr;
  const MatmulPlan* dw_product_ = nullptr;
  // The library cannot fuse this with the product, so a kernel of our own runs afterwards.
  bool bias_follows_ = false;
  const FewRowsTile* few_rows_ = nullptr;  // used instead of the library unless null
  bool takes_neighbors_ = false;
  bool starts_early_ = false;
  // Workspace: for products, then for sums, from the first multiple of kScratchAlignment on.
  int64_t product_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
  int64_t aside_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearOp>> CreateOnCuda(const LinearShape& shape, Device& device) {
  RETURN_IF_ERROR(CheckLinear(shape, kMaxCudaExtent));
  if (shape.quantized.has_value() && TakesQuantizedRows(shape)) {
    return CreateQuantizedRows(shape, device);
  }
  if (shape.independent_rows) {
    return absl::UnimplementedError("linear has no CUDA kernel for rows of several sequences");
  }
  if (shape.quantized.has_value()) return CreateExpandedLinear(shape, device);
  auto op = std::make_unique<CudaLinear>(shape, device.activation_type());
  RETURN_IF_ERROR(base::Annotate(op->Prepare(BlasOf(device), TunerOf(device)),
                                 absl::StrCat("linear, ", shape.rows, " rows, ", shape.inputs,
                                              " inputs, ", shape.outputs, " outputs")));
  return std::unique_ptr<LinearOp>(std::move(op));
}

}  // namespace stagecoach::kernels
