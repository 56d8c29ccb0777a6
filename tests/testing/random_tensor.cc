#include "tests/testing/random_tensor.h"

#include <cmath>
#include <cstddef>

#include "base/random.h"
#include "kernels/bfloat16.h"

namespace stagecoach::testing {
namespace {

base::RandomStream Stream(uint64_t stream) { return base::RandomStream(/*seed=*/20240229, stream); }

}  // namespace

std::vector<float> RandomNormal(int64_t elements, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(elements));
  Stream(stream).FillNormal(0.0F, 1.0F, absl::MakeSpan(values));
  return values;
}

std::vector<float> RandomUniform(float lo, float hi, int64_t elements, uint64_t stream) {
  std::vector<float> values(static_cast<size_t>(elements));
  Stream(stream).FillUniform(lo, hi, absl::MakeSpan(values));
  return values;
}

std::vector<int32_t> RandomLabels(int64_t rows, int64_t classes, uint64_t stream) {
  const base::RandomStream random = Stream(stream);
  std::vector<int32_t> labels(static_cast<size_t>(rows));
  for (size_t r = 0; r < labels.size(); ++r) {
    labels[r] = static_cast<int32_t>(random.Below(r, static_cast<uint64_t>(classes)));
  }
  return labels;
}

std::vector<float> RoundedTo(kernels::DType type, std::vector<float> values) {
  if (type == kernels::DType::kBfloat16) {
    for (float& value : values) value = kernels::FromBfloat16(kernels::ToBfloat16(value));
  }
  return values;
}

std::vector<double> ToDouble(absl::Span<const float> values) {
  return std::vector<double>(values.begin(), values.end());
}

std::vector<double> Magnitudes(absl::Span<const double> values) {
  std::vector<double> magnitudes;
  magnitudes.reserve(values.size());
  for (double value : values) magnitudes.push_back(std::fabs(value));
  return magnitudes;
}

}  // namespace stagecoach::testing
