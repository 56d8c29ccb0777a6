#ifndef STAGECOACH_ENGINE_DATA_DATA_FINGERPRINT_H_
#define STAGECOACH_ENGINE_DATA_DATA_FINGERPRINT_H_

#include <cstdint>

#include "engine/data/dataset.h"

namespace stagecoach::engine {

// Returns the fingerprint of the samples of both sets, as a model is fed them, and of their
// encoding. For a set above `most_bytes`, samples of that size, spread evenly, stand for all; so do
// labels of that size, which are all labels unless these alone are larger. Takes a fraction of a
// second.
DataFingerprint FingerprintOf(const TrainTest& data, int64_t most_bytes = int64_t{1} << 30);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_DATA_FINGERPRINT_H_
