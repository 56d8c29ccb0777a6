#ifndef STAGECOACH_TESTS_KERNELS_OPS_LOSSES_H_
#define STAGECOACH_TESTS_KERNELS_OPS_LOSSES_H_

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/ops/loss.h"
#include "kernels/ops/ops.h"
#include "tests/testing/reference.h"

// The losses of kernels/ops/loss.h, for tests that hold for each.
namespace stagecoach::kernels {

enum class LossKind : uint8_t { kSoftmaxCrossEntropy, kMeanSquaredError };
inline constexpr LossKind kLossKinds[] = {LossKind::kSoftmaxCrossEntropy,
                                          LossKind::kMeanSquaredError};

inline absl::StatusOr<std::unique_ptr<LossOp>> CreateLoss(Ops& ops, LossKind kind,
                                                          const LossShape& shape) {
  return kind == LossKind::kSoftmaxCrossEntropy ? ops.Create(SoftmaxCrossEntropyShape{shape})
                                                : ops.Create(MeanSquaredErrorShape{shape});
}

inline reference::LossOutput ReferenceLoss(LossKind kind, const LossShape& shape,
                                           reference::Values output,
                                           absl::Span<const int32_t> labels, int64_t valid_rows,
                                           double scale) {
  const auto loss = kind == LossKind::kSoftmaxCrossEntropy ? reference::SoftmaxCrossEntropy
                                                           : reference::MeanSquaredError;
  return loss(shape, output, labels, valid_rows, scale);
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_TESTS_KERNELS_OPS_LOSSES_H_
