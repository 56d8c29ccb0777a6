#include "tests/testing/tolerance.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace stagecoach::testing {
namespace {

using kernels::DType;

// gelu(z) = z gate(t), where gate(t) = (1 + tanh t) / 2 = 1 / (1 + e^-2t) and t = sqrt(2/pi) (z +
// 0.044715 z^3). The error of the gate:
//   t has at most 6 roundings; with |2t| gate (1 - gate) < 0.224 they move the gate by 1.4 u
//   the elementary function moves it by elementary u / 2 (tanh; half of that for the other form)
//   the additions and the division move it by 2.6 u
double GateError(const Precision& precision) {
  return precision.unit_roundoff * (4.0 + precision.elementary / 2.0);
}

}  // namespace

const Precision& PrecisionOf(DType dtype) {
  static constexpr Precision kFloat32{0x1p-24, 0x1p-125, 4.0};
  static constexpr Precision kFloat64{0x1p-53, 0x1p-1021, 4.0};
  // Stored as such, never computed in: elementary functions are float32's.
  static constexpr Precision kBfloat16{0x1p-8, 0x1p-125, 0.0};
  static constexpr Precision kInt32{0.0, 0.0, 0.0};
  switch (dtype) {
    case DType::kFloat32:
      return kFloat32;
    case DType::kFloat64:
      return kFloat64;
    case DType::kBfloat16:
      return kBfloat16;
    case DType::kInt32:
      return kInt32;
    case DType::kUint8:
      break;
  }
  base::PrintAndAbort(__FILE__, __LINE__, "PrecisionOf", "unknown dtype");
}

double Gamma(int64_t k, DType dtype) {
  const double ku = static_cast<double>(k) * PrecisionOf(dtype).unit_roundoff;
  STAGECOACH_CHECK(ku < 1.0, absl::StrCat("no bound for ", k, " roundings"));
  return ku / (1.0 - ku);
}

double DotBound(int64_t n, double sum_abs, DType dtype) { return Gamma(n, dtype) * sum_abs; }

double StoredBound(double value, double bound, DType dtype) {
  if (dtype == DType::kFloat32) return bound;  // which has the last rounding
  const Precision& precision = PrecisionOf(dtype);
  return bound + precision.unit_roundoff * (std::fabs(value) + bound) + precision.underflow;
}

double GeluBound(double z, double z_error, DType dtype) {
  const Precision& precision = PrecisionOf(dtype);
  constexpr double kLargestDerivative = 1.13;
  return kLargestDerivative * z_error +
         (std::fabs(z) + z_error) * (GateError(precision) + precision.unit_roundoff);
}

double GeluDerivativeBound(double z, DType dtype) {
  // gelu'(z) = gate + 2 z gate (1 - gate) t'(z), of which gate (1 - gate) <= 1/4 is off by at most
  // the error of the gate and one rounding; the products around it have at most 8 roundings.
  const Precision& precision = PrecisionOf(dtype);
  const double gate_error = GateError(precision);
  const double u = precision.unit_roundoff;
  const double t_derivative = 0.79788456080286536 * (1.0 + 3.0 * 0.044715 * z * z);
  return gate_error + u + 2.0 * std::fabs(z) * t_derivative * (gate_error + u + 8.0 * u / 4.0);
}

}  // namespace stagecoach::testing
