#ifndef STAGECOACH_ENGINE_NN_ACTIVATION_OBSERVER_H_
#define STAGECOACH_ENGINE_NN_ACTIVATION_OBSERVER_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// The passes, in the order in which a micro-batch goes through them.
enum class Pass : uint8_t { kForward, kLoss, kBackward };

// Sees what layers produce, in the order of the stream, before anything else is issued. For runs
// that search for something (NonFiniteSearch); these are not recorded.
class ActivationObserver {
 public:
  virtual ~ActivationObserver() = default;

  // `layer`: index in the model; for the loss, the number of layers. `made`: the layer's whole
  // output; the loss's result and the gradient; or the gradient of the layer's input or those of
  // its parameters.
  virtual absl::Status OnTensor(Pass pass, int layer, absl::Span<const kernels::Tensor> made) = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_ACTIVATION_OBSERVER_H_
