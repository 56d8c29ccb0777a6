#ifndef STAGECOACH_ENGINE_TRAIN_TOKEN_CHOICE_H_
#define STAGECOACH_ENGINE_TRAIN_TOKEN_CHOICE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// How the token that follows is chosen from what a model gives for each.
struct TokenChoice {
  // The logits are divided by it before the softmax. 0: the largest is taken, and nothing is drawn.
  double temperature = 0.8;
  int64_t top_k = 0;   // of so many with the largest logits; 0: of all
  double top_p = 1.0;  // of the fewest of those whose probabilities sum to so much (Holtzman 2020)
  uint64_t seed = 1;
};

// The id to follow `logits`, which has a number for each. Of equal ones, the smaller id comes
// first. What is drawn is a function of the seed and of the `position` in the sequence, so the text
// does not depend on how it was computed. InvalidArgument: a number is not finite. Pre-condition:
// there is an id, and temperature, top_k and top_p are not negative.
absl::StatusOr<int32_t> ChooseToken(absl::Span<const float> logits, const TokenChoice& choice,
                                    int64_t position);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_TOKEN_CHOICE_H_
