#ifndef STAGECOACH_BASE_PHILOX_H_
#define STAGECOACH_BASE_PHILOX_H_

#include <cstdint>

#include "base/host_device.h"

// Philox-4x32 with 10 rounds, the basis of base/random.h, for loops that should be vectorized and
// for GPUs. Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011:
// constants of sections 4.1 and 4.3; the multipliers passed its statistical tests, and the key
// schedule adds the golden ratio and the square root of 3 less 1.
namespace stagecoach::base {

inline constexpr int kPhiloxRounds = 10;

struct PhiloxKey {
  uint32_t k0, k1;
};

// The words of a counter, or what the rounds turn them into.
struct PhiloxWords {
  uint32_t w0, w1, w2, w3;
};

// Performs one round in place. The key of the next round is NextPhiloxKey.
STAGECOACH_HOST_DEVICE inline void PhiloxRound(PhiloxKey key, uint32_t& w0, uint32_t& w1,
                                               uint32_t& w2, uint32_t& w3) {
  const uint64_t product0 = uint64_t{0xD2511F53} * w0;
  const uint64_t product1 = uint64_t{0xCD9E8D57} * w2;
  w0 = static_cast<uint32_t>(product1 >> 32) ^ w1 ^ key.k0;
  w2 = static_cast<uint32_t>(product0 >> 32) ^ w3 ^ key.k1;
  w1 = static_cast<uint32_t>(product1);
  w3 = static_cast<uint32_t>(product0);
}

STAGECOACH_HOST_DEVICE inline PhiloxKey NextPhiloxKey(PhiloxKey key) {
  return {key.k0 + 0x9E3779B9, key.k1 + 0xBB67AE85};
}

STAGECOACH_HOST_DEVICE inline PhiloxWords PhiloxBlock(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    PhiloxRound(key, counter.w0, counter.w1, counter.w2, counter.w3);
    key = NextPhiloxKey(key);
  }
  return counter;
}

// Returns what RandomStream(seed, stream) uses: the key, and the counter of its words 4 * block to
// 4 * block + 3.
STAGECOACH_HOST_DEVICE inline PhiloxKey PhiloxKeyOf(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}
STAGECOACH_HOST_DEVICE inline PhiloxWords PhiloxCounterOf(uint64_t stream, uint64_t block) {
  return {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32),
          static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)};
}

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_PHILOX_H_
