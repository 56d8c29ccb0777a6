#ifndef STAGECOACH_ENGINE_GENERATE_TOKEN_CHOICE_H_
#define STAGECOACH_ENGINE_GENERATE_TOKEN_CHOICE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// Describes how the next token is chosen from a model's outputs.
struct TokenChoice {
  // Divides the logits before the softmax. 0: the largest is taken, and nothing is drawn.
  double temperature = 0.8;
  int64_t top_k = 0;   // only the k largest logits; 0: all
  double top_p = 1.0;  // only the fewest of those whose probabilities sum to this (Holtzman 2020)
  uint64_t seed = 1;
};

// Returns the id to follow `logits`, which has a number for each. Of equal ones, the smaller id
// comes first. The draw is a function of the seed and of the `position` in the sequence, so the
// text does not depend on how it was computed. InvalidArgument: a number is NaN or infinite.
// Pre-condition: there is an id, and temperature, top_k and top_p are not negative.
absl::StatusOr<int32_t> ChooseToken(absl::Span<const float> logits, const TokenChoice& choice,
                                    int64_t position);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_GENERATE_TOKEN_CHOICE_H_
