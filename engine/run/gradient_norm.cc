#include "engine/run/gradient_norm.h"

#include "base/status_macros.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;

absl::StatusOr<GradientNorm> GradientNorm::Create(kernels::Device& device, int ranks,
                                                  int total_parameters, float clip_norm) {
  GradientNorm norm(device, clip_norm);
  const int64_t own_bytes = total_parameters * SizeOf(DType::kFloat64);
  const int64_t all_bytes = ranks * own_bytes;
  ASSIGN_OR_RETURN(norm.table_,
                   device.AllocateTable(own_bytes + all_bytes + 2 * SizeOf(DType::kFloat64)));
  ASSIGN_OR_RETURN(norm.host_norm_, device.AllocateHost(SizeOf(DType::kFloat64)));
  std::byte* const table = norm.table_.data();
  norm.own_squares_ = {table, DType::kFloat64, Shape{total_parameters}};
  norm.all_squares_ = {table + own_bytes, DType::kFloat64, Shape{ranks, total_parameters}};
  norm.norm_ = {table + own_bytes + all_bytes, DType::kFloat64, Shape{1}};
  norm.scale_ = {table + own_bytes + all_bytes + SizeOf(DType::kFloat64), DType::kFloat32,
                 Shape{1}};
  return norm;
}

Tensor GradientNorm::Squares(int first, int count) const {
  return {own_squares_.f64() + first, DType::kFloat64, Shape{count}};
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
