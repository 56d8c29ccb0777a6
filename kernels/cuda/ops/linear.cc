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
#include "kernels/cuda/ops/activation_kernels.h"
#include "kernels/cuda/ops/column_sums_kernels.h"
#include "kernels/cuda/ops/cuda_ops.h"
#include "kernels/cuda/products/blas_lt.h"
#include "kernels/cuda/products/matmul_plan.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// Of each part of the workspace.
constexpr int64_t kScratchAlignment = 256;

int64_t AlignScratch(int64_t bytes) {
  return (bytes + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

std::byte* AlignScratch(std::byte* address) {
  const auto value = reinterpret_cast<intptr_t>(address);
  return address + (AlignScratch(value) - value);
}

// Names of extents as in kernels/ops/linear.h: R rows, I inputs, O outputs.
class CudaLinear final : public LinearOp {
 public:
  CudaLinear(const LinearShape& shape, DType type)
      : R_(shape.rows),
        I_(shape.inputs),
        O_(shape.outputs),
        activation_(shape.activation),
        has_bias_(shape.has_bias),
        type_(type) {}

  absl::Status Prepare(BlasLt& blas) {
    RETURN_IF_ERROR(PrepareForward(blas));
    // dx^T (I, R) = w^T^T (I, O) dz^T (O, R)
    ASSIGN_OR_RETURN(dx_product_, blas.Plan({.transpose_a = true,
                                             .m = I_,
                                             .n = R_,
                                             .k = O_,
                                             .operand_type = type_,
                                             .result_type = type_}));
    RETURN_IF_ERROR(PrepareBackwardWeight(blas));
    // Of all products, in use or not: plans of memory must not depend on what the library can do.
    for (const Product& product :
         {ForwardProduct(), dx_product_->product(), BackwardWeightProduct()}) {
      product_bytes_ =
          std::max(product_bytes_, MatmulWorkspaceBytes(product, blas.compute_major()));
    }
    workspace_bytes_ = kScratchAlignment + product_bytes_ + AlignScratch(SumsBytes());
    return absl::OkStatus();
  }

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  absl::Status Forward(Stream& stream, const Tensor& x, const Tensor& w, const Tensor& b,
                       const Tensor& z, const Tensor& y, std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    if (!bias_follows_) {
      return forward_product_->Run(compute,
                                   {.a = w.data,
                                    .b = x.data,
                                    .d = y.data,
                                    .bias = has_bias_ ? b.data : nullptr,
                                    .aux = z.data},
                                   ProductWorkspace(workspace));
    }
    RETURN_IF_ERROR(forward_product_->Run(compute, {.a = w.data, .b = x.data, .d = y.data},
                                          ProductWorkspace(workspace)));
    return FollowWithBias(compute, y.data, has_bias_ ? b.data : nullptr, z.data);
  }

  absl::Status BackwardInput(Stream& stream, const Tensor& dy, const Tensor& y, const Tensor& z,
                             const Tensor& w, const Tensor& dz, const Tensor& dx,
                             std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    const void* gradient = dy.data;
    if (activation_ != Activation::kNone) {
      const void* const known = KeepsZ(activation_) ? z.data : y.data;
      RETURN_IF_ERROR(CudaStatus(LaunchActivationBackward(compute, element_type(), activation_,
                                                          R_ * O_, dy.data, known, dz.data),
                                 "LaunchActivationBackward"));
      gradient = dz.data;
    }
    if (dx.empty()) return absl::OkStatus();
    return dx_product_->Run(compute, {.a = w.data, .b = gradient, .d = dx.data},
                            ProductWorkspace(workspace));
  }

  absl::Status BackwardWeight(Stream& stream, const Tensor& x, const Tensor& dz, const Tensor& dw,
                              const Tensor& db, bool accumulate, std::byte* workspace) override {
    const cudaStream_t compute = AsCuda(stream).compute();
    if (!has_bias_) {
      return dw_product_->Run(compute,
                              {.a = dz.data, .b = x.data, .d = dw.data, .accumulate = accumulate},
                              ProductWorkspace(workspace));
    }
    float* const sums = SumsWorkspace(workspace);
    // The library can only overwrite the gradient of the bias.
    float* const db_of_product = accumulate ? sums : db.f32();
    RETURN_IF_ERROR(dw_product_->Run(compute,
                                     {.a = dz.data,
                                      .b = x.data,
                                      .d = dw.data,
                                      .bias_gradient = db_follows_ ? nullptr : db_of_product,
                                      .accumulate = accumulate},
                                     ProductWorkspace(workspace)));
    if (db_follows_) {
      return FollowWithSums(compute, dz.data, db.f32(), accumulate, sums);
    }
    if (!accumulate) return absl::OkStatus();
    return CudaStatus(LaunchAddFloats(compute, O_, sums, db.f32()), "LaunchAddFloats");
  }

 private:
  // y^T (O, R) = w^T (O, I) x^T (I, R)
  Product ForwardProduct() const {
    return {.m = O_, .n = R_, .k = I_, .operand_type = type_, .result_type = type_};
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

  // What the library can do beside the product.
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

  // By the library where it can as exactly as the type.
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
    const Apart apart = {.after_plain = [this](cudaStream_t stream,
                                               const MatmulPlan::Operands& operands, std::byte*) {
      return FollowWithBias(stream, operands.d, operands.bias, operands.aux);
    }};
    return blas.Plan(product, &apart);
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

  absl::Status PrepareBackwardWeight(BlasLt& blas) {
    Product product = BackwardWeightProduct();
    if (!has_bias_) {
      ASSIGN_OR_RETURN(dw_product_, blas.Plan(product));
      return absl::OkStatus();
    }
    product.epilogue = Epilogue::kBiasGradient;
    // As in all micro-batches but the first.
    const Apart apart = {
        .after_fused =
            [this](cudaStream_t stream, const MatmulPlan::Operands& operands, std::byte* scratch) {
              return CudaStatus(
                  LaunchAddFloats(stream, O_, static_cast<const float*>(operands.bias_gradient),
                                  reinterpret_cast<float*>(scratch)),
                  "LaunchAddFloats");
            },
        .after_plain =
            [this](cudaStream_t stream, const MatmulPlan::Operands& operands, std::byte* scratch) {
              return FollowWithSums(stream, operands.a, static_cast<float*>(operands.bias_gradient),
                                    /*accumulate=*/true, reinterpret_cast<float*>(scratch));
            },
        .scratch_bytes = SumsBytes()};
    absl::StatusOr<const MatmulPlan*> plan = blas.Plan(product, &apart);
    db_follows_ = absl::IsUnimplemented(plan.status());
    if (db_follows_) {
      product.epilogue = Epilogue::kNone;
      plan = blas.Plan(product);
    }
    RETURN_IF_ERROR(plan.status());
    dw_product_ = *plan;
    return absl::OkStatus();
  }

  absl::Status FollowWithSums(cudaStream_t stream, const void* dz, float* db, bool accumulate,
                              float* workspace) const {
    return CudaStatus(LaunchColumnSums(stream, element_type(),
                                       {.rows = R_,
                                        .columns = O_,
                                        .matrix = dz,
                                        .sums = db,
                                        .accumulate = accumulate,
                                        .workspace = workspace}),
                      "LaunchColumnSums");
  }
  int64_t SumsBytes() const {
    if (!has_bias_) return 0;
    return std::max(ColumnSumsWorkspaceBytes(R_, O_), O_ * SizeOf(DType::kFloat32));
  }

  ElementType element_type() const { return ElementTypeOf(type_); }

  std::byte* ProductWorkspace(std::byte* workspace) const { return AlignScratch(workspace); }
  float* SumsWorkspace(std::byte* workspace) const {
    return reinterpret_cast<float*>(AlignScratch(workspace) + product_bytes_);
  }

  const int64_t R_, I_, O_;
  const Activation activation_;
  const bool has_bias_;
  const DType type_;
  const MatmulPlan* forward_product_ = nullptr;
  const MatmulPlan* dx_product_ = nullptr;
  const MatmulPlan* dw_product_ = nullptr;
  // What the library does not do beside the product, and a kernel of our own does after it.
  bool bias_follows_ = false;
  bool db_follows_ = false;
  // Workspace: of products, then of sums; from the first multiple of kScratchAlignment in it.
  int64_t product_bytes_ = 0;
  int64_t workspace_bytes_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<LinearOp>> CreateOnCuda(const LinearShape& shape, Device& device) {
  for (const int64_t extent : {shape.rows, shape.inputs, shape.outputs}) {
    if (IsCudaExtent(extent)) continue;
    return absl::InvalidArgumentError(absl::StrCat("linear: extents must be 1 to ", kMaxCudaExtent,
                                                   ": ", shape.rows, " rows, ", shape.inputs,
                                                   " inputs, ", shape.outputs, " outputs"));
  }
  auto op = std::make_unique<CudaLinear>(shape, device.activation_type());
  RETURN_IF_ERROR(base::Annotate(op->Prepare(BlasOf(device)),
                                 absl::StrCat("linear, ", shape.rows, " rows, ", shape.inputs,
                                              " inputs, ", shape.outputs, " outputs")));
  return std::unique_ptr<LinearOp>(std::move(op));
}

}  // namespace stagecoach::kernels
