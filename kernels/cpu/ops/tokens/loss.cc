#include "kernels/ops/loss.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/math.h"

namespace stagecoach::kernels {
namespace {

constexpr int64_t kRowTile = 16;

// The contribution of one row to the result. The workspace has one for each row, until they are
// summed in order.
struct RowResult {
  double loss;
  bool correct;
};

bool IsClass(int32_t label, int64_t classes) { return label >= 0 && label < classes; }

// Returns the result of a row whose label is no class.
template <typename T>
RowResult NoClass(int32_t label, int64_t classes, T* gradient) {
  const float value = label == kNoLabel ? 0.0F : std::numeric_limits<float>::quiet_NaN();
  if (gradient != nullptr) std::fill_n(gradient, classes, T(value));
  return {value, false};
}

// `gradient` may be null or `output`. Both read the row fully before they write.
template <typename T>
RowResult SoftmaxCrossEntropyRow(const T* output, int64_t classes, const Tensor& targets, int64_t r,
                                 float scale, T* gradient) {
  const int32_t label = targets.i32()[r];
  if (!IsClass(label, classes)) return NoClass(label, classes, gradient);
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
    // This does not use values that have been rounded to T. A loss is infinite, and the rest
    // finite, if the label's output is minus infinity.
    const auto share =
        static_cast<float>(std::exp(static_cast<double>(at_label - maximum)) * factor);
    gradient[label] = share - scale * (1.0F + 0.0F * at_label);
  }
  return {std::log(sum) - (static_cast<double>(at_label) - maximum), largest == label};
}

// The cross-entropy with a smoothed label, or with weights.
class WeightedCrossEntropyRow {
 public:
  explicit WeightedCrossEntropyRow(const SoftmaxCrossEntropyShape& shape) {
    const double share =
        static_cast<double>(shape.label_smoothing) / static_cast<double>(shape.classes);
    for (int64_t c = 0; c < shape.classes; ++c) {
      const double weight =
          shape.class_weights.empty() ? 1.0 : shape.class_weights[static_cast<size_t>(c)];
      own_.push_back((1.0 - static_cast<double>(shape.label_smoothing)) * weight);
      smoothed_.push_back(share * weight);
      total_ += smoothed_.back();
    }
  }

  // `gradient` may be null or `output`.
  template <typename T>
  RowResult operator()(const T* output, int64_t classes, const Tensor& targets, int64_t r,
                       float scale, T* gradient) const {
    const int32_t label = targets.i32()[r];
    if (!IsClass(label, classes)) return NoClass(label, classes, gradient);
    const int64_t largest = std::max_element(output, output + classes) - output;
    const double maximum = static_cast<double>(output[largest]);
    const double own = own_[static_cast<size_t>(label)];
    double sum = 0.0;
    double smoothed = 0.0;
    for (int64_t c = 0; c < classes; ++c) {
      const double difference = static_cast<double>(output[c]) - maximum;
      const double weight = smoothed_[static_cast<size_t>(c)];
      sum += std::exp(difference);
      if (weight > 0.0) smoothed += weight * difference;
    }
    double loss = (own + total_) * std::log(sum) - smoothed;
    if (own > 0.0) loss -= own * (static_cast<double>(output[label]) - maximum);
    if (gradient != nullptr) {
      // A loss that is not finite shows in the gradient.
      const double factor = (own + total_) / sum + 0.0 * loss;
      for (int64_t c = 0; c < classes; ++c) {
        const double q = smoothed_[static_cast<size_t>(c)] + (c == label ? own : 0.0);
        const double share = std::exp(static_cast<double>(output[c]) - maximum) * factor;
        gradient[c] = static_cast<float>(static_cast<double>(scale) * (share - q));
      }
    }
    return {loss, largest == label};
  }

 private:
  std::vector<double> own_, smoothed_;  // (1 - e) w_c and e/C w_c
  double total_ = 0.0;                  // of smoothed_
};

template <typename T, typename Target>
double SquaredErrors(const T* output, int64_t classes, Target target, float scale, T* gradient) {
  double sum = 0.0;
  const double factor = 2.0 * scale / static_cast<double>(classes);
  for (int64_t c = 0; c < classes; ++c) {
    const double difference = static_cast<double>(output[c]) - target(c);
    sum += difference * difference;
    if (gradient != nullptr) gradient[c] = static_cast<float>(factor * difference);
  }
  return sum / static_cast<double>(classes);
}

template <typename T>
RowResult MeanSquaredErrorRow(const T* output, int64_t classes, const Tensor& targets, int64_t r,
                              float scale, T* gradient) {
  const int32_t label = targets.i32()[r];
  if (!IsClass(label, classes)) return NoClass(label, classes, gradient);
  const int64_t largest = std::max_element(output, output + classes) - output;
  const auto target = [&](int64_t c) { return c == label ? 1.0 : 0.0; };
  return {SquaredErrors(output, classes, target, scale, gradient), largest == label};
}

template <typename T>
RowResult MeanSquaredErrorOfValuesRow(const T* output, int64_t classes, const Tensor& targets,
                                      int64_t r, float scale, T* gradient) {
  const float* const values = targets.f32() + r * classes;
  const auto target = [&](int64_t c) { return static_cast<double>(values[c]); };
  return {SquaredErrors(output, classes, target, scale, gradient), false};
}

template <typename T>
using RowFunction = RowResult (*)(const T* output, int64_t classes, const Tensor& targets,
                                  int64_t r, float scale, T* gradient);

template <typename T, typename Row = RowFunction<T>>
class CpuLoss final : public LossOp {
 public:
  CpuLoss(Row function, const LossShape& shape)
      : function_(std::move(function)),
        C_(shape.classes),
        P_(shape.positions),
        row_tiles_(shape.rows, kRowTile) {}

  int64_t workspace_bytes() const override {
    return row_tiles_.extent * static_cast<int64_t>(sizeof(RowResult));
  }

  absl::Status Compute(Stream& stream, const Tensor& output, const Tensor& targets,
                       const LossTerms* terms, const Tensor& gradient, const Tensor& result,
                       std::byte* workspace) override {
    auto* const results = reinterpret_cast<RowResult*>(workspace);
    const int64_t valid_rows = terms->valid_samples * P_;
    const float row_scale = terms->scale / static_cast<float>(P_);
    AsCpu(stream).ParallelFor(row_tiles_.count, [&](int tile, int) {
      const int64_t begin = row_tiles_.begin(tile);
      for (int64_t r = begin; r < begin + row_tiles_.length(tile); ++r) {
        T* const gradient_row = gradient.empty() ? nullptr : Elements<T>(gradient) + r * C_;
        if (r < valid_rows) {
          results[r] =
              function_(Elements<T>(output) + r * C_, C_, targets, r, row_scale, gradient_row);
        } else if (gradient_row != nullptr) {
          std::fill_n(gradient_row, C_, T(0.0F));
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
  const Row function_;
  const int64_t C_;
  const int64_t P_;
  const Tiling row_tiles_;
};

absl::Status CheckLoss(const LossShape& shape) {
  if (shape.positions < 1 || shape.rows % shape.positions != 0) {
    return absl::InvalidArgumentError(absl::StrCat("loss: ", shape.rows, " rows are no samples of ",
                                                   shape.positions, " positions"));
  }
  if (!IsExtent(shape.rows) || !IsExtent(shape.classes)) {
    return absl::InvalidArgumentError(absl::StrCat("loss: extents must be 1 to ", kMaxExtent, ": ",
                                                   shape.rows, " rows, ", shape.classes,
                                                   " classes"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCpu(const SoftmaxCrossEntropyShape& shape,
                                                    Device& device) {
  RETURN_IF_ERROR(CheckLoss(shape));
  RETURN_IF_ERROR(CheckClassWeights(shape));
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<LossOp> {
    if (shape.is_plain()) return std::make_unique<CpuLoss<T>>(SoftmaxCrossEntropyRow<T>, shape);
    return std::make_unique<CpuLoss<T, WeightedCrossEntropyRow>>(WeightedCrossEntropyRow(shape),
                                                                 shape);
  });
}

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCpu(const MeanSquaredErrorShape& shape,
                                                    Device& device) {
  RETURN_IF_ERROR(CheckLoss(shape));
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<LossOp> {
    return std::make_unique<CpuLoss<T>>(MeanSquaredErrorRow<T>, shape);
  });
}

absl::StatusOr<std::unique_ptr<LossOp>> CreateOnCpu(const MeanSquaredErrorOfValuesShape& shape,
                                                    Device& device) {
  RETURN_IF_ERROR(CheckLoss(shape));
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<LossOp> {
    return std::make_unique<CpuLoss<T>>(MeanSquaredErrorOfValuesRow<T>, shape);
  });
}

}  // namespace stagecoach::kernels
