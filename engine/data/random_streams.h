#ifndef STAGECOACH_ENGINE_DATA_RANDOM_STREAMS_H_
#define STAGECOACH_ENGINE_DATA_RANDOM_STREAMS_H_

#include <cstdint>

#include "base/check.h"

namespace stagecoach::engine {

// The uses of random numbers in this folder. Each use has streams of its own, so that one seed from
// the user is enough for all of them, and no two share a number.
enum class DataStream : uint64_t {
  kEpochOrder = 1,
  kCsvHoldOut = 2,
  kSyntheticTrain = 3,
  kSyntheticTest = 4,
  kSyntheticCalibration = 5,
  kTeacherHidden = 6,
  kTeacherOutput = 7,
  kTokenOrigin = 8,
  kImageHoldOut = 9,
  kImageBox = 10,
  kImageShift = 11,
};

// Returns the stream id for base::RandomStream and base::Permutation. `index` tells apart the
// streams of one use, in [0, 2^40). The top 16 bits mark the ids as this folder's.
inline uint64_t StreamId(DataStream use, int64_t index = 0) {
  constexpr uint64_t kFolder = 0xDA7A;
  STAGECOACH_CHECK(index >= 0 && index < (int64_t{1} << 40), "stream index out of range");
  return kFolder << 48 | static_cast<uint64_t>(use) << 40 | static_cast<uint64_t>(index);
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_RANDOM_STREAMS_H_
