#ifndef STAGECOACH_KERNELS_MATH_H_
#define STAGECOACH_KERNELS_MATH_H_

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "kernels/rotary_scaling.h"

// Scalar mathematics shared by the backends, written so that a compiler vectorizes the loops that
// call it: no branches, no library calls. Each backend brings only its own exponential: FastExp on
// a CPU, an instruction on a GPU.
namespace stagecoach::kernels {

// Returns e^x to within 2 units in the last place for x in [-87, 88]; outside, the value at the
// nearer end.
inline float FastExp(float x) {
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr float kLn2High = 0.693359375F;  // ln 2 in two parts, so that n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  float r = x - n * kLn2High;
  r = r - n * kLn2Low;
  // The minimax polynomial of (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2] (Cephes, Moshier).
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float e_r = p * r * r + r + 1.0F;
  // n is in the low bits of `shifted`; 2^n goes into the exponent.
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - std::bit_cast<int32_t>(kRound)) << 23;
  return std::bit_cast<float>(std::bit_cast<int32_t>(e_r) + exponent);
}

inline constexpr float kGeluScale = 0.7978845608028654F;  // sqrt(2 / pi)
inline constexpr float kGeluCubic = 0.044715F;

// Returns a gate of logistic form: 1 / (1 + e), where e is an exponential.
STAGECOACH_HOST_DEVICE inline float LogisticGate(float exponential) {
  return 1.0F / (1.0F + exponential);
}

// Returns the derivative of SiLU, which is a times its gate, LogisticGate(e^-a).
STAGECOACH_HOST_DEVICE inline float SiluDerivative(float a, float gate) {
  return gate + a * gate * (1.0F - gate);
}

// Returns the gate of a alone, on a CPU.
inline float SiluGate(float a) { return LogisticGate(FastExp(-a)); }

// Returns the derivative of the sigmoid from its value y.
STAGECOACH_HOST_DEVICE inline float SigmoidDerivative(float y) { return y * (1.0F - y); }

// Returns the exponent of e, where tanh(z) is (1 - e) / (1 + e) with e = e^-2|z| and the sign of z.
// If that would cancel, tanh(z) is an odd polynomial, whose relative error is below 2^-25 for
// |z| < 0.625.
STAGECOACH_HOST_DEVICE inline float TanhExponent(float z) { return -2.0F * (z < 0.0F ? -z : z); }

// Returns tanh(z) from |tanh(z)|, which need not be precise where that would cancel.
STAGECOACH_HOST_DEVICE inline float TanhFrom(float z, float magnitude) {
  const float s = z * z;
  float p = -5.992961116e-3F;
  p = p * s + 2.092414908e-2F;
  p = p * s - 5.383514240e-2F;
  p = p * s + 1.333266348e-1F;
  p = p * s - 3.333332837e-1F;
  const float near_zero = z + z * (s * p);
  const float far = z < 0.0F ? -magnitude : magnitude;
  return s < 0.625F * 0.625F ? near_zero : far;
}

STAGECOACH_HOST_DEVICE inline float TanhOf(float z, float exponential) {
  return TanhFrom(z, (1.0F - exponential) / (1.0F + exponential));
}

// Returns the derivative of tanh from its value y.
STAGECOACH_HOST_DEVICE inline float TanhDerivative(float y) { return 1.0F - y * y; }

// Take z alone, on a CPU.
inline float Sigmoid(float z) { return LogisticGate(FastExp(-z)); }
inline float Tanh(float z) { return TanhOf(z, FastExp(TanhExponent(z))); }

// Returns the exponent -2u of GELU's gate, the share of z that passes: (1 + tanh(u)) / 2 = 1 / (1 +
// e^(-2u)) with u = kGeluScale (z + kGeluCubic z^3), which is LogisticGate(e^(-2u)).
STAGECOACH_HOST_DEVICE inline float GeluExponent(float z) {
  return -2.0F * (kGeluScale * (z + kGeluCubic * z * z * z));
}

// Returns d gelu / dz.
STAGECOACH_HOST_DEVICE inline float GeluDerivative(float z, float gate) {
  const float du = kGeluScale * (1.0F + 3.0F * kGeluCubic * z * z);
  return gate + 2.0F * z * gate * (1.0F - gate) * du;
}

// Take z alone, on a CPU.
inline float Gelu(float z) { return z * LogisticGate(FastExp(GeluExponent(z))); }
inline float GeluDerivative(float z) {
  return GeluDerivative(z, LogisticGate(FastExp(GeluExponent(z))));
}

// Returns the exponent in the gate of the exact form. The gate is the distribution function of the
// normal distribution, so the exponential in it is that of the density.
STAGECOACH_HOST_DEVICE inline float GeluExactExponent(float z) { return -0.5F * z * z; }

// Returns the gate, from e to that power. Below 0 it is e^(-z^2/2) t P(t) with t = 1 / (1 + 0.35
// |z|), where P is a minimax polynomial whose relative error is below 2^-24 for |z| < 13, beyond
// which the exponential vanishes. Above 0 it is 1 less that.
STAGECOACH_HOST_DEVICE inline float GeluExactGate(float z, float exponential) {
  const float t = 1.0F / (1.0F + 0.35F * (z < 0.0F ? -z : z));
  float p = -2.911501750e-2F;
  p = p * t + 1.438184232e-1F;
  p = p * t - 2.553910315e-1F;
  p = p * t + 1.587965786e-1F;
  p = p * t - 2.284343541e-2F;
  p = p * t + 1.053921506e-1F;
  p = p * t + 1.198630854e-1F;
  p = p * t + 1.398575604e-1F;
  p = p * t + 1.396216601e-1F;
  const float tail = exponential * (t * p);
  return z < 0.0F ? tail : 1.0F - tail;
}

// Returns the derivative of the exact form.
STAGECOACH_HOST_DEVICE inline float GeluExactDerivative(float z, float gate, float exponential) {
  constexpr float kDensityAtZero = 0.3989422804014327F;  // 1 / sqrt(2 pi)
  return gate + z * (kDensityAtZero * exponential);
}

// Take z alone, on a CPU.
inline float GeluExact(float z) { return z * GeluExactGate(z, FastExp(GeluExactExponent(z))); }
inline float GeluExactDerivative(float z) {
  const float exponential = FastExp(GeluExactExponent(z));
  return GeluExactDerivative(z, GeluExactGate(z, exponential), exponential);
}

// Returns the frequency of pair i, in radians for each position, that was `frequency`.
STAGECOACH_HOST_DEVICE inline double ScaledFrequency(double frequency, const RotaryScaling& scaling,
                                                     int64_t i) {
  return scaling.pairs == 0 ? frequency : frequency / scaling.divisors[i];
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_MATH_H_
