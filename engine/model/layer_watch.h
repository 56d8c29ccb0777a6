#ifndef STAGECOACH_ENGINE_MODEL_LAYER_WATCH_H_
#define STAGECOACH_ENGINE_MODEL_LAYER_WATCH_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// In the order in which a micro-batch passes through them.
enum class Pass : uint8_t { kForward, kLoss, kBackward };

// Is shown what layers make, in the order of the stream, before anything else is issued: for runs
// that look for something (NonFiniteSearch), which are no recordings then.
class LayerWatch {
 public:
  virtual ~LayerWatch() = default;

  // `layer`: of the model; of the loss, the number of layers. `made`: its output, whole; the loss's
  // result and the gradient; or the gradient of its input or those of its parameters.
  virtual absl::Status Saw(Pass pass, int layer, absl::Span<const kernels::Tensor> made) = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_LAYER_WATCH_H_
