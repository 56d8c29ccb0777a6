#ifndef STAGECOACH_ENGINE_NN_FUSION_NORM_FUSION_H_
#define STAGECOACH_ENGINE_NN_FUSION_NORM_FUSION_H_

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/nn/fusion/tail_fusion.h"
#include "engine/nn/layer.h"
#include "kernels/ops/layer_norm.h"

namespace stagecoach::engine {

// Layers that can compute the norm before them as they read its input: saves a pass over memory
// and, on a GPU, a kernel that the next one would wait for. Internal to Sequential and the layers
// in engine/nn/layers that implement this next to Layer; other layers know nothing of it. The bits
// are those of the layers apart, so they are the same wherever the model is cut. The norm's output
// keeps its place in the plan of memory, where nothing is written: whether a layer can do this may
// depend on measurements of a GPU.
class NormFusion {
 public:
  virtual ~NormFusion() = default;

  // Asked once the layer is prepared.
  virtual bool takes_norm() const = 0;
  // Returns whether it does so in this call, if takes_norm().
  virtual bool takes_norm_in(const LayerArgs& /*args*/) const { return true; }
  // Runs Layer::Forward on the norm of x; y does not overlap x. `tail`: empty unless the layer
  // takes one (TailFusion).
  virtual absl::Status ForwardWithNorm(const LayerArgs& args, const kernels::InputNorm& norm,
                                       const Tail& tail) = 0;
};

// Implemented next to Layer by a layer that is nothing but a norm along the last axis.
class PlainNorm {
 public:
  virtual ~PlainNorm() = default;
  virtual kernels::InputNorm NormOf(absl::Span<const Tensor> parameters) const = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_FUSION_NORM_FUSION_H_
