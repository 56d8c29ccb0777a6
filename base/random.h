#ifndef STAGECOACH_BASE_RANDOM_H_
#define STAGECOACH_BASE_RANDOM_H_

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace stagecoach::base {

// Counter-based random numbers: a number is a pure function of (seed, stream, index), so it does
// not depend on which thread, stage or process asks for it, or in what order.

// Computes Philox-4x32 with 10 rounds (base/philox.h), a bijection of the counter for every key.
std::array<uint32_t, 4> Philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

// The random sequence named by (seed, stream), with random access. Different pairs have independent
// sequences. The accessors are views of the same underlying words, so values of different accessors
// at nearby indices are not independent: use one kind per stream. A value type; thread-safe.
class RandomStream {
 public:
  RandomStream(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  // Uniform over all 32-bit words.
  uint32_t Uint32(uint64_t index) const;

  // Uniform over the multiples of 2^-24 in [0, 1).
  float Uniform(uint64_t index) const;

  // Standard normal, by the Box-Muller transform in double precision; at most 6.7 in magnitude.
  // Every call on one machine returns the same bits; another C library may differ in the last bit.
  float Normal(uint64_t index) const;

  // Uniform over [0, n), from 64 random bits: no value is more than n / 2^64 (relative) more likely
  // than another. n must be positive.
  uint64_t Below(uint64_t index, uint64_t n) const;

  // Sets values[i] = fma(hi - lo, Uniform(first_index + i), lo): uniform in [lo, hi], where hi
  // itself can only arise by rounding.
  void FillUniform(float lo, float hi, absl::Span<float> values, uint64_t first_index = 0) const;

  // Sets values[i] = fma(stddev, Normal(first_index + i), mean).
  void FillNormal(float mean, float stddev, absl::Span<float> values,
                  uint64_t first_index = 0) const;

 private:
  // Returns words 4 * block to 4 * block + 3 of the stream.
  std::array<uint32_t, 4> Words(uint64_t block) const;

  uint64_t seed_;
  uint64_t stream_;
};

// Returns a uniformly random order of 0, 1, ..., n - 1 (Fisher-Yates on RandomStream(seed,
// stream)). n must not be negative.
std::vector<int64_t> Permutation(uint64_t seed, uint64_t stream, int64_t n);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_RANDOM_H_
