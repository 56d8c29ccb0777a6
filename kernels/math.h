#ifndef STAGECOACH_KERNELS_MATH_H_
#define STAGECOACH_KERNELS_MATH_H_

#include <bit>
#include <cmath>
#include <cstdint>

// Scalar mathematics shared by the backends, written so that a compiler vectorises the loops that
// call it: no branches, no library calls.
namespace stagecoach::kernels {

// e^x to within 2 units in the last place for x in [-87, 88]; outside, the value at the nearer end.
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
  // Minimax polynomial of (e^r - 1 - r) / r^2 on [-ln2/2, ln2/2] (Cephes, Moshier).
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

// The share of z that GELU lets pass: (1 + tanh(u)) / 2 = 1 / (1 + e^(-2u)), u = kGeluScale (z +
// kGeluCubic z^3).
inline float GeluGate(float z) {
  const float u = kGeluScale * (z + kGeluCubic * z * z * z);
  return 1.0F / (1.0F + FastExp(-2.0F * u));
}

inline float Gelu(float z) { return z * GeluGate(z); }

// d gelu / dz.
inline float GeluDerivative(float z) {
  const float gate = GeluGate(z);
  const float du = kGeluScale * (1.0F + 3.0F * kGeluCubic * z * z);
  return gate + 2.0F * z * gate * (1.0F - gate) * du;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_MATH_H_
