#ifndef STAGECOACH_ENGINE_NN_LAST_AXIS_H_
#define STAGECOACH_ENGINE_NN_LAST_AXIS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/nn/layer.h"

namespace stagecoach::engine {

// A micro-batch as seen by layers that work along the last axis of a sample: each position of each
// sample is a row of a matrix.
struct LastAxis {
  int64_t rows;
  int64_t features;  // size of the last axis
  // Returns the sample's shape with another last axis.
  Shape WithFeatures(int64_t other) const;

  Shape sample;
};

// Returns this view of a micro-batch. InvalidArgument, with the layer's name: the sample has no
// axis.
absl::StatusOr<LastAxis> AlongLastAxis(absl::string_view layer, const LayerContext& context);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAST_AXIS_H_
