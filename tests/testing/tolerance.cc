#include "tests/testing/tolerance.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/reference.h"

namespace stagecoach::testing {
namespace {

using kernels::Activation;
using kernels::DType;

// Errors of float32: one rounding, and an elementary function.
constexpr double kUnit = 0x1p-24;
constexpr double kElementary = 4.0;

// gelu(z) = z gate(t), where gate(t) = (1 + tanh t) / 2 = 1 / (1 + e^-2t) and t = sqrt(2/pi) (z +
// 0.044715 z^3). The gate's error has these parts:
//   t has at most 6 roundings; with |2t| gate (1 - gate) < 0.224 they move the gate by 1.4 u
//   the elementary function moves it by elementary u / 2 (tanh; half of that for the other form)
//   the additions move it by 1.6 u, and the division by 4 u: GPUs divide approximately
double GateError() { return kUnit * (7.0 + kElementary / 2.0); }

// Returns the bound of gelu'(z) = gate + 2 z gate (1 - gate) t'(z), of which gate (1 - gate) <= 1/4
// is off by at most the error of the gate and one rounding; the products around it have at most 8
// roundings.
double GeluDerivativeBound(double z) {
  const double t_derivative = 0.79788456080286536 * (1.0 + 3.0 * 0.044715 * z * z);
  return GateError() + kUnit +
         2.0 * std::fabs(z) * t_derivative * (GateError() + kUnit + 8.0 * kUnit / 4.0);
}

// The gate of the exact form is q = e^(-z^2/2) t P(t) < 1/2, or 1 - q (kernels/math.h). The
// contributions to the error of q, in units of u q unless stated otherwise:
//   the rounding of the exponent, by z^2/2, which times q is less than 0.1 u; and the exponential
//   4 roundings in t, the division and that of 0.35 included, by 2.3 times as much: t P(t) is the
//   Mills ratio except for a constant, whose logarithm has at most that slope by that of t
//   P has 16 roundings, with terms that are at most 2.3 P in all; it is off by 1 as a polynomial
//   two products
double ExactGateError() {
  return kUnit *
         (0.1 + (kElementary + (4.0 + kElementary) * 2.3 + 16.0 * 2.3 + 1.0 + 2.0) / 2.0 + 1.0);
}

// Returns the bound of gelu'(z) = gate + z density; the density has the roundings of its exponent,
// the exponential, and three more.
double GeluExactDerivativeBound(double z) {
  const double term = std::fabs(z) * std::exp(-0.5 * z * z) * 0.3989422804014327;
  return ExactGateError() + kUnit * (1.13 + term * (0.5 * z * z + kElementary + 3.0));
}

// Returns the error of tanh. Near zero it is y = z (1 + s P(s)), where s P(s) is at most 0.13: half
// a unit by the polynomial, the sum, and 0.13 of 6 roundings. Elsewhere it is (1 - e) / (1 + e)
// with e < 0.29: three roundings, and 0.62 of the error of e, which on a GPU is 1.2 units more at
// the end where that counts.
double TanhError() { return kUnit * (3.0 + 0.62 * (kElementary + 1.2 * 2.0)); }

}  // namespace

const Precision& PrecisionOf(DType dtype) {
  static constexpr Precision kFloat32{kUnit, 0x1p-125, kElementary};
  static constexpr Precision kFloat64{0x1p-53, 0x1p-1021, 4.0};
  // This type is only stored, never computed in: elementary functions are float32's.
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
    case DType::kFloat16:
    case DType::kInt8:
      break;
  }
  base::PrintAndAbort(__FILE__, __LINE__, "PrecisionOf", "unknown dtype");
}

namespace {

// Returns the roundings that s = 1 / (1 + e^-a) can meet: the exponential, which on a GPU is off by
// 1.2 |a| more units in the last place; the sum; the division. The relative error of 1 + e is at
// most that of e and one rounding.
int64_t LogisticRoundings(double a) {
  return static_cast<int64_t>(2.0 * kElementary + 1.0 + 2.4 * std::fabs(a));
}

}  // namespace

double Gamma(int64_t k, DType dtype) {
  const double ku = static_cast<double>(k) * PrecisionOf(dtype).unit_roundoff;
  STAGECOACH_CHECK(ku < 1.0, absl::StrCat("no bound for ", k, " roundings"));
  return ku / (1.0 - ku);
}

double DotBound(int64_t n, double sum_abs, DType dtype) { return Gamma(n, dtype) * sum_abs; }

double StoredBound(double value, double bound, DType dtype) {
  if (dtype == DType::kFloat32) return bound;  // it includes the last rounding
  const Precision& precision = PrecisionOf(dtype);
  return bound + precision.unit_roundoff * (std::fabs(value) + bound) + precision.underflow;
}

bool IsExact(Activation activation) {
  return activation == Activation::kNone || activation == Activation::kRelu;
}

double ActivationBound(Activation activation, double z, double z_error) {
  // The largest derivative of either form of GELU.
  constexpr double kLargestDerivative = 1.13;
  const auto gelu = [&](double gate_error) {
    return kLargestDerivative * z_error + (std::fabs(z) + z_error) * (gate_error + kUnit);
  };
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu:
      return z_error;
    case Activation::kGelu:
      return gelu(GateError());
    case Activation::kGeluExact:
      return gelu(ExactGateError());
    case Activation::kTanh:
      return z_error + TanhError() * std::fabs(std::tanh(z));
    case Activation::kSigmoid:
      return z_error / 4.0 + Gamma(LogisticRoundings(z)) / (1.0 + std::exp(-z));
  }
  base::PrintAndAbort(__FILE__, __LINE__, "ActivationBound", "unknown activation");
}

double ActivationDerivativeBound(Activation activation, double z, DType dtype) {
  const double y = kernels::reference::Activate(activation, z);
  const double y_error = PrecisionOf(dtype).unit_roundoff * std::fabs(y) * (1.0 + 1e-6);
  switch (activation) {
    case Activation::kNone:
    case Activation::kRelu:
      return 0.0;
    case Activation::kGelu:
      return GeluDerivativeBound(z);
    case Activation::kGeluExact:
      return GeluExactDerivativeBound(z);
    case Activation::kTanh:  // 1 - y^2
      return (2.0 * std::fabs(y) + y_error) * y_error + 2.0 * kUnit;
    case Activation::kSigmoid:  // y (1 - y)
      return (std::fabs(1.0 - 2.0 * y) + y_error) * y_error + 2.0 * kUnit * y;
  }
  base::PrintAndAbort(__FILE__, __LINE__, "ActivationDerivativeBound", "unknown activation");
}

namespace {

// Returns the bound of a product with gelu(a).
double GatedBound(double a) {
  return ActivationBound(Activation::kGelu, a, 0.0) +
         Gamma(2) * std::fabs(kernels::reference::Activate(Activation::kGelu, a));
}

}  // namespace

std::vector<double> SwiGluForwardBounds(const kernels::SwiGluShape& shape,
                                        absl::Span<const double> x) {
  std::vector<double> bounds;
  for (int64_t r = 0; r < shape.rows; ++r) {
    const auto row = static_cast<size_t>(r * 2 * shape.features);
    for (int64_t c = 0; c < shape.features; ++c) {
      const size_t at_a = row + static_cast<size_t>(c);
      const double a = x[at_a], b = x[at_a + static_cast<size_t>(shape.features)];
      if (shape.gate == kernels::GluGate::kGelu) {
        bounds.push_back(std::fabs(b) * GatedBound(a));
        continue;
      }
      const double s = 1.0 / (1.0 + std::exp(-a));
      bounds.push_back(Gamma(LogisticRoundings(a) + 2) * std::fabs(a * b) * s);
    }
  }
  return bounds;
}

// The factor 1 - s of da is off by as much as s, relative to 1; in addition there are 6 roundings.
std::vector<double> SwiGluBackwardBounds(const kernels::SwiGluShape& shape,
                                         absl::Span<const double> dy, absl::Span<const double> x) {
  std::vector<double> bounds(x.size());
  for (int64_t r = 0; r < shape.rows; ++r) {
    for (int64_t c = 0; c < shape.features; ++c) {
      const auto at_a = static_cast<size_t>(r * 2 * shape.features + c);
      const size_t at_b = at_a + static_cast<size_t>(shape.features);
      const double a = x[at_a], s = 1.0 / (1.0 + std::exp(-a));
      const double gradient = std::fabs(dy[static_cast<size_t>(r * shape.features + c)]);
      if (shape.gate == kernels::GluGate::kGelu) {
        const double derivative = kernels::reference::ActivationDerivative(Activation::kGelu, a);
        bounds[at_a] = gradient * std::fabs(x[at_b]) *
                       (GeluDerivativeBound(a) + Gamma(2) * (1.0 + std::fabs(derivative)));
        bounds[at_b] = gradient * GatedBound(a);
        continue;
      }
      const int64_t roundings = LogisticRoundings(a);
      bounds[at_a] =
          Gamma(2 * roundings + 6) * gradient * std::fabs(x[at_b]) * s * (1.0 + std::fabs(a));
      bounds[at_b] = Gamma(roundings + 2) * gradient * std::fabs(a) * s;
    }
  }
  return bounds;
}

}  // namespace stagecoach::testing
