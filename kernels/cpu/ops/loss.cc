#include "kernels/ops/loss.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/math.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kRowTile = 16;

// What one row adds to the result. The workspace has one of each row, until they are summed in
// order.
struct RowResult {
  double loss;
  bool correct;
};

// `gradient` may be null or `output`. Both read the row fully before they write.
RowResult SoftmaxCrossEntropyRow(const float* output, int64_t classes, int32_t label, float scale,
                                 float* gradient) {
  const int64_t largest = std::max_element(output, output + classes) - output;
  const float maximum = output[largest];
  const float at_label = output[label];
  double sum = 0.0;
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(static_cast<double>(output[c] - maximum));
  if (gradient != nullptr) {
    const double factor = static_cast<double>(scale) / sum;
    for (int64_t c = 0; c < classes; ++c) {
      gradient[c] = static_cast<float>(std::exp(static_cast<double>(output[c] - maximum)) * factor);
    }
    gradient[label] -= scale;
  }
  return {std::log(sum) - (static_cast<double>(at_label) - maximum), largest == label};
}

RowResult MeanSquaredErrorRow(const float* output, int64_t classes, int32_t label, float scale,
                              float* gradient) {
  const int64_t largest = std::max_element(output, output + classes) - output;
  double sum = 0.0;
  const double factor = 2.0 * scale / static_cast<double>(classes);
  for (int64_t c = 0; c < classes; ++c) {
    const double difference = static_cast<double>(output[c]) - (c == label ? 1.0 : 0.0);
    sum += difference * difference;
    if (gradient != nullptr) gradient[c] = static_cast<float>(factor * difference);
  }
  return {sum / static_cast<double>(classes), largest == label};
}

using RowFunction = RowResult (*)(const float*, int64_t, int32_t, float, float*);

class CpuLoss final : public LossOp {
 public:
  CpuLoss(RowFunction function, const LossShape& shape)
      : function_(function),
        C_(shape.classes),
        P_(shape.positions),
        row_tiles_(shape.rows, kRowTile) {}

  int64_t workspace_bytes() const override {
    return row_tiles_.extent * static_cast<int64_t>(sizeof(RowResult));
  }

  absl::Status Compute(Stream& stream, const Tensor& output, const Tensor& labels,
                       int64_t valid_rows, float scale, const Tensor& gradient,
                       const Tensor& result, std::byte* workspace) override {
    auto* const results = reinterpret_cast<RowResult*>(workspace);
    const float row_scale = scale / static_cast<float>(P_);
    AsCpu(stream).ParallelFor(row_tiles_.count, [&](int tile, int) {
      const int64_t begin = row_tiles_.begin(tile);
      for (int64_t r = begin; r < begin + row_tiles_.length(tile); ++r) {
        float* const gradient_row = gradient.empty() ? nullptr : gradient.f32() + r * C_;
        if (r < valid_rows) {
          results[r] =
              function_(output.f32() + r * C_, C_, labels.i32()[r], row_scale, gradient_row);
        } else if (gradient_row != nullptr) {
          std::fill_n(gradient_row, C_, 0.0F);
        }
      }
    });
    double loss = 0.0;
    int64_t correct = 0;
    for (int64_t r = 0; r < valid_rows; ++r) {
      loss += results[r].loss;
      correct += results[r].correct ? 1 : 0;
    }
    result.f64()[0] = loss / static_cast<double>(P_);
    result.f64()[1] = static_cast<double>(correct);
    return absl::OkStatus();
  }

 private:
  const RowFunction function_;
  const int64_t C_;
  const int64_t P_;
  const Tiling row_tiles_;
};

absl::StatusOr<std::unique_ptr<LossOp>> CreateLoss(RowFunction function, const LossShape& shape) {
  if (shape.positions < 1 || shape.rows % shape.positions != 0) {
    return absl::InvalidArgumentError(absl::StrCat("loss: ", shape.rows, " rows are no samples of ",
                                                   shape.positions, " positions"));
  }
  if (!IsExtent(shape.rows) || !IsExtent(shape.classes)) {
    return absl::InvalidArgumentError(absl::StrCat("loss: extents must be 1 to ", kMaxExtent, ": ",
                                                   shape.rows, " rows, ", shape.classes,
                                                   " classes"));
  }
  return std::unique_ptr<LossOp>(std::make_unique<CpuLoss>(function, shape));
}

}  // namespace

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCpu(const SoftmaxCrossEntropyShape& shape,
                                                    Device& /*device*/) {
  return CreateLoss(SoftmaxCrossEntropyRow, shape);
}

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCpu(const MeanSquaredErrorShape& shape,
                                                    Device& /*device*/) {
  return CreateLoss(MeanSquaredErrorRow, shape);
}

}  // namespace stagecoach::kernels
