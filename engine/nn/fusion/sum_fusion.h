#ifndef STAGECOACH_ENGINE_NN_FUSION_SUM_FUSION_H_
#define STAGECOACH_ENGINE_NN_FUSION_SUM_FUSION_H_

#include "absl/status/status.h"
#include "engine/nn/layer.h"

namespace stagecoach::engine {

// The sums of a residual block, y = x + f(x) and dx = dy + f'(dy), in layers that pass over those
// tensors anyway: saves reading and writing each once more. Internal to Sequential and the layers
// in engine/nn/layers that implement this next to Layer; other layers know nothing of it. The chain
// decides which layer adds, by the block alone, so wherever the model is cut the bits are the same.
// Those of sums before Forward are kernels::ElementwiseOps::Add's; some layers round dx only after
// the sum.
class SumFusion {
 public:
  virtual ~SumFusion() = default;

  // The sums that a prepared layer can take over, and leave to the next.
  struct Abilities {
    // Forward begins by adding `x_addend` to x, in place. The addend may be in the memory of y.
    bool adds_to_x = false;
    bool defers_sum = false;  // Forward ends by adding x to y, and can leave that to the next layer
    bool adds_to_dx = false;  // BackwardInput and Backward end by adding `dx_addend` to dx
    // Backward ends by adding a tensor to dx, and can leave that to the layer before.
    bool defers_dx_sum = false;
    bool adds_to_dy = false;  // Backward can begin by adding `dy_addend` to dy
  };
  virtual Abilities abilities() const = 0;

  // Runs Layer::Forward, but first x += x_addend (unless that is empty), and with y complete only
  // after the next layer's Forward if `defers_sum`. The call is repeatable together with the layer
  // that left the sum: a repeated pass starts with a complete x.
  virtual absl::Status ForwardFused(const LayerArgs& args, const Tensor& x_addend,
                                    bool defers_sum) = 0;
  // Runs Layer::BackwardInput, then dx += dx_addend, which may be dy. If that is not empty, neither
  // is dx.
  virtual absl::Status BackwardInputFused(const LayerArgs& args, const Tensor& dx_addend) = 0;
  // The sums of a Backward.
  struct BackwardSums {
    Tensor dx_addend;  // as above
    // First dy += dy_addend, rounded, which may destroy both. Empty: nothing is added.
    Tensor dy_addend;
    // dx is complete only with DeferredAddend, which the layer before adds: it does so at once, and
    // until then nothing else is written to the workspace and the gradient stash.
    bool defers_dx_sum = false;

    bool empty() const { return dx_addend.empty() && dy_addend.empty() && !defers_dx_sum; }
  };
  // Does the same for Layer::Backward.
  virtual absl::Status BackwardFused(const LayerArgs& args, const BackwardSums& sums) = 0;
  // Returns what such a Backward has left to be added to dx, in the workspace or gradient stash.
  virtual Tensor DeferredAddend(const LayerArgs& /*args*/) const { return {}; }
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_FUSION_SUM_FUSION_H_
