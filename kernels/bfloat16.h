#ifndef STAGECOACH_KERNELS_BFLOAT16_H_
#define STAGECOACH_KERNELS_BFLOAT16_H_

#include <bit>
#include <cstdint>

// bfloat16 on the host: the upper half of a float32's bits.
namespace stagecoach::kernels {

// Returns the nearest bfloat16, ties to even; NaN stays NaN.
inline uint16_t ToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((bits >> 16) | 0x40U);
  return static_cast<uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline float FromBfloat16(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

// An element for loops that handle float and bfloat16 alike: it is a float once read, and is
// rounded when stored. Like a float, it may be left uninitialized.
class Bfloat16 {
 public:
  Bfloat16() = default;
  // Stores.
  // NOLINTNEXTLINE(google-explicit-constructor)
  Bfloat16(float value) : bits_(ToBfloat16(value)) {}
  // Loads.
  // NOLINTNEXTLINE(google-explicit-constructor)
  operator float() const { return FromBfloat16(bits_); }

 private:
  uint16_t bits_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_BFLOAT16_H_
