#ifndef STAGECOACH_ENGINE_TRAIN_SAVE_INTERVAL_H_
#define STAGECOACH_ENGINE_TRAIN_SAVE_INTERVAL_H_

#include "absl/time/time.h"

namespace stagecoach::engine {

// Returns how often a run should be saved if a save holds it up for `cost` and it fails about once
// in `between_failures`: the interval that minimizes the total cost of saves and repeated steps,
// sqrt(2 cost between_failures) (Young 1974, doi:10.1145/361147.361115). But saves take at most a
// hundredth of the time, and are at least a second apart.
absl::Duration SaveInterval(absl::Duration cost, absl::Duration between_failures);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_SAVE_INTERVAL_H_
