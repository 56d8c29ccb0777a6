#include "engine/runtime/gradient_norm.h"

#include <limits>

#include "absl/container/inlined_vector.h"
#include "base/status_macros.h"
#include "engine/comm/collectives.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;

absl::StatusOr<GradientNorm> GradientNorm::Create(kernels::Device& device, std::byte* table,
                                                  int ranks, TensorPart part,
                                                  const ParameterTable& parameters,
                                                  float clip_norm) {
  GradientNorm norm(device, clip_norm > 0.0F ? clip_norm : std::numeric_limits<float>::infinity());
  const int64_t own_bytes = parameters.pieces() * SizeOf(DType::kFloat64);
  const int64_t column_bytes = ranks * own_bytes;
  const int64_t all_bytes = part.parts * column_bytes;
  ASSIGN_OR_RETURN(norm.host_norm_, device.AllocateHost(SizeOf(DType::kFloat64)));
  norm.own_squares_ = {table, DType::kFloat64, Shape{parameters.pieces()}};
  norm.column_squares_ = {table + own_bytes + part.index * column_bytes, DType::kFloat64,
                          Shape{ranks, parameters.pieces()}};
  norm.all_squares_ = {table + own_bytes, DType::kFloat64,
                       Shape{int64_t{part.parts} * ranks, parameters.pieces()}};
  norm.norm_ = {table + own_bytes + all_bytes, DType::kFloat64, Shape{1}};
  norm.scale_ = {table + own_bytes + all_bytes + SizeOf(DType::kFloat64), DType::kFloat32,
                 Shape{1}};
  return norm;
}

Tensor GradientNorm::Squares(absl::Span<const ModelParameter> own) const {
  if (own.empty()) return {own_squares_.data, DType::kFloat64, Shape{0}};
  const int first = own.front().first_piece;
  const int end = own.back().first_piece + own.back().pieces();
  return {own_squares_.f64() + first, DType::kFloat64, Shape{end - first}};
}

absl::Status GradientNorm::Exchange(Transport& transport, absl::Span<const Rank> ranks,
                                    base::Deadline deadline) {
  return AllGather(transport, ranks, device_->stream(), Message::Kind::kNorms, own_squares_,
                   column_squares_, deadline);
}

absl::Status GradientNorm::ExchangeParts(Transport& transport, base::Deadline deadline) {
  absl::InlinedVector<Rank, 16> parts;
  for (int part = 0; part < transport.ranks(); ++part) parts.emplace_back(part);
  return AllGather(transport, parts, device_->stream(), Message::Kind::kNorms, column_squares_,
                   all_squares_, deadline);
}

absl::Status GradientNorm::Combine() {
  RETURN_IF_ERROR(device_->ops().optimizer().ClipScale(device_->stream(), all_squares_, clip_norm_,
                                                       norm_, scale_));
  return device_->stream().CopyToHost(host_norm_.data(), norm_.data, norm_.bytes());
}

}  // namespace stagecoach::engine
