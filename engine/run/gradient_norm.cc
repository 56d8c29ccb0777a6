#include "engine/run/gradient_norm.h"

#include "base/status_macros.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;

absl::StatusOr<GradientNorm> GradientNorm::Create(kernels::Device& device, int ranks,
                                                  const ParameterTable& parameters,
                                                  float clip_norm) {
  GradientNorm norm(device, clip_norm);
  const int64_t own_bytes = parameters.size() * SizeOf(DType::kFloat64);
  const int64_t all_bytes = ranks * own_bytes;
  ASSIGN_OR_RETURN(norm.table_,
                   device.AllocateTable(own_bytes + all_bytes + 2 * SizeOf(DType::kFloat64)));
  ASSIGN_OR_RETURN(norm.host_norm_, device.AllocateHost(SizeOf(DType::kFloat64)));
  std::byte* const table = norm.table_.data();
  norm.own_squares_ = {table, DType::kFloat64, Shape{parameters.size()}};
  norm.all_squares_ = {table + own_bytes, DType::kFloat64, Shape{ranks, parameters.size()}};
  norm.norm_ = {table + own_bytes + all_bytes, DType::kFloat64, Shape{1}};
  norm.scale_ = {table + own_bytes + all_bytes + SizeOf(DType::kFloat64), DType::kFloat32,
                 Shape{1}};
  return norm;
}

Tensor GradientNorm::Squares(absl::Span<const ModelParameter> own) const {
  const int32_t first = own.empty() ? 0 : own.front().id.value();
  return {own_squares_.f64() + first, DType::kFloat64, Shape{static_cast<int64_t>(own.size())}};
}

absl::Status GradientNorm::Combine(Transport& transport, base::Deadline deadline) {
  RETURN_IF_ERROR(AllGather(transport, device_->stream(), own_squares_, all_squares_, deadline));
  return CombineAlone();
}

absl::Status GradientNorm::CombineAlone() {
  return device_->ops().optimizer().ClipScale(device_->stream(), all_squares_, clip_norm_, norm_,
                                              scale_);
}

absl::Status GradientNorm::Fetch() {
  return device_->stream().CopyToHost(host_norm_.data(), norm_.data, norm_.bytes());
}

}  // namespace stagecoach::engine
