#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/train/fit.h"

namespace stagecoach::engine {
namespace {

class RowMean final : public EvaluationMetric {
 public:
  RowMean(std::string name, RowMetric metric)
      : name_(std::move(name)), metric_(std::move(metric)) {}

  std::string name() const override { return name_; }
  void Begin() override {
    sum_ = 0.0;
    rows_ = 0;
  }
  absl::Status Add(const Dataset& data, const Outputs& outputs) override {
    const auto width = outputs.values.size() / static_cast<size_t>(outputs.rows);
    for (int64_t i = 0; i < outputs.rows; ++i) {
      const auto own =
          absl::MakeConstSpan(outputs.values).subspan(static_cast<size_t>(i) * width, width);
      sum_ += metric_(data, outputs.first_row + i, own);
    }
    rows_ += outputs.rows;
    return absl::OkStatus();
  }
  double Value() const override { return sum_ / static_cast<double>(rows_); }

 private:
  const std::string name_;
  const RowMetric metric_;
  double sum_ = 0.0;
  int64_t rows_ = 0;
};

}  // namespace

std::shared_ptr<EvaluationMetric> MeanOfRows(std::string name, RowMetric metric) {
  return std::make_shared<RowMean>(std::move(name), std::move(metric));
}

}  // namespace stagecoach::engine
