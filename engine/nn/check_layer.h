#ifndef STAGECOACH_ENGINE_NN_CHECK_LAYER_H_
#define STAGECOACH_ENGINE_NN_CHECK_LAYER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "engine/nn/layer.h"

namespace stagecoach::engine {

struct LayerCheck {
  Shape input;             // of one sample; a few dozen elements are enough to find mistakes
  int64_t rows = 3;        // samples of a micro-batch
  int64_t vocabulary = 0;  // if positive, x holds ids below it
  uint64_t seed = 1;       // of all values
  // Maximum difference between a gradient and finite differences, relative to the largest element
  // of its tensor.
  double tolerance = 0.01;
};

// Runs a user's layer by itself, before a model is trained with it: on a CPU device in float32, on
// random values. FailedPrecondition says what is wrong and where, and reports the first of these:
//
//  - Prepare, Forward or a backward operation fails, or throws: its error, with its name.
//  - Something is written outside of its tensor or area, or a tensor that may only be read is
//    changed: "BackwardInput changes x".
//  - A result is NaN, or has other bits when the same is computed again, or while another
//    micro-batch is in flight: the layer keeps something outside of the areas that it declares.
//  - A result depends on what an area held before, or on what was declared not to be read any more:
//    "BackwardWeight reads y, but memory.output_last_use is kForward".
//  - dx or a gradient is not that of Forward, by central differences of sum(dy * y). An element is
//    right if it is for one of three step widths: where Forward has a kink, some are not.
//  - `accumulate` does not add; Backward has other bits than the two operations that it combines.
//
// Finally, BackwardInput is called without dx, as for the first layer of a model. InvalidArgument:
// the layer takes a skip or computes the loss, which needs more than the layer alone.
absl::Status CheckLayer(const LayerFactory& factory, const LayerCheck& check);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_CHECK_LAYER_H_
