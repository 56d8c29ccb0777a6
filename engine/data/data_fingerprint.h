#ifndef STAGECOACH_ENGINE_DATA_DATA_FINGERPRINT_H_
#define STAGECOACH_ENGINE_DATA_DATA_FINGERPRINT_H_

#include "engine/data/dataset.h"

namespace stagecoach::engine {

// The fingerprint of the samples of both sets, as a model is fed with them, and of their encoding.
// Of sets above a gigabyte, samples of that much, spread evenly, stand for all. Takes a fraction of
// a second.
DataFingerprint FingerprintOf(const TrainTest& data);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_DATA_FINGERPRINT_H_
