#include "tests/testing/cuda/cublas_lt/expected.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tests/testing/tolerance.h"

namespace stagecoach::testing::cuda {
namespace {

constexpr double kBfloat16Roundoff = 0x1p-8;
constexpr double kTf32Roundoff = 0x1p-11;

double Gelu(double z) {
  return 0.5 * z * (1.0 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
}
double GeluDerivative(double z) {
  const double t = std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z));
  return 0.5 * (1.0 + t) +
         0.5 * z * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * z * z);
}

// Returns the error after storing: a stored value is rounded once more.
double WhenStored(cudaDataType_t type, double value, double error) {
  const double u = type == CUDA_R_16BF ? kBfloat16Roundoff : 0.0;
  return error + u * (std::fabs(value) + error);
}

constexpr int kMostParts = 4;  // into which an algorithm splits k

}  // namespace

ExpectedProduct Expect(const BlasProblem& p) {
  ExpectedProduct expected;
  const BlasCase& c = p.c;
  const uint32_t epilogue = c.epilogue;
  const bool tf32 = c.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  // Errors of operands, and of parts of the sum that are kept in the type of the result.
  const double operand_error = tf32 ? 2 * kTf32Roundoff + kTf32Roundoff * kTf32Roundoff : 0.0;
  const double part_error = c.result == CUDA_R_16BF ? (kMostParts + 1) * kBfloat16Roundoff : 0.0;
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < c.m; ++i) {
      double sum = 0, magnitude = 0;
      for (int64_t q = 0; q < c.k; ++q) {
        const double product = p.a.At(i, q, c.transpose_a) * p.b.At(q, j, c.transpose_b);
        sum += product;
        magnitude += std::fabs(product);
      }
      const double old = c.beta == 0.0F ? 0.0 : c.beta * p.d.At(i, j);
      const double added = (epilogue & 4) != 0 ? p.bias.At(i, 0) : 0.0;
      const double z = c.alpha * sum + old + added;
      const double scale = std::fabs(c.alpha) * magnitude;
      const double error = Gamma(c.k + kMostParts + 5) * (scale + std::fabs(old + added)) +
                           1.01 * (operand_error + part_error) * scale;
      double value = z, bound = error;
      if ((epilogue & 2) != 0) value = std::max(z, 0.0);
      if ((epilogue & 32) != 0) {
        value = Gelu(z);
        bound = ActivationBound(kernels::Activation::kGelu, z, error);
      }
      if ((epilogue & 8) != 0 && !p.MaskBit(i, j)) value = bound = 0.0;
      if ((epilogue & 64) != 0) {
        const double slope = GeluDerivative(p.aux.At(i, j));
        const double slope_error =
            ActivationDerivativeBound(kernels::Activation::kGelu, p.aux.At(i, j));
        value = z * slope;
        bound = error * (std::fabs(slope) + slope_error) +
                std::fabs(z) * (slope_error + Gamma(1) * std::fabs(slope));
      }
      expected.before.push_back(z);
      expected.before_bounds.push_back(WhenStored(c.result, z, error));
      expected.values.push_back(value);
      expected.bounds.push_back(bound);
    }
  }
  if ((epilogue & 16) != 0) {
    for (int64_t i = 0; i < c.m; ++i) {
      double sum = 0, magnitude = 0, error = 0;
      for (int64_t j = 0; j < c.n; ++j) {
        const auto index = static_cast<size_t>(j * c.m + i);
        sum += expected.values[index];
        magnitude += std::fabs(expected.values[index]);
        error += expected.bounds[index];
      }
      expected.bias.push_back(sum);
      expected.bias_bounds.push_back(
          WhenStored(c.result, sum, error + Gamma(c.n) * (magnitude + error)));
    }
  }
  for (size_t i = 0; i < expected.values.size(); ++i) {
    expected.bounds[i] = WhenStored(c.result, expected.values[i], expected.bounds[i]);
  }
  return expected;
}

}  // namespace stagecoach::testing::cuda
