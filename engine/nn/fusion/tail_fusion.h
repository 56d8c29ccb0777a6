#ifndef STAGECOACH_ENGINE_NN_FUSION_TAIL_FUSION_H_
#define STAGECOACH_ENGINE_NN_FUSION_TAIL_FUSION_H_

#include "absl/status/status.h"
#include "engine/nn/layer.h"
#include "kernels/ops/image_norm.h"

namespace stagecoach::engine {

// The operations that follow a layer in the same pass over memory: first the sum, then the ReLU.
struct Tail {
  Tensor addend;  // y += addend; empty: none. May be in the memory of y.
  bool has_relu = false;
  // Unless its mean is empty, the addend has yet to pass this norm: see DeferredNorm.
  kernels::OtherImageNorm addend_norm = {};
  // y, without a sum or a ReLU, is left to the layer that adds it: see ForwardDeferred.
  bool defers_y = false;

  bool empty() const { return addend.empty() && !has_relu; }
};

// Describes how the gradient comes back through a tail with a ReLU.
struct TailGradient {
  // The ReLU's output. Empty: there was no addend, and the output need not be in memory any more.
  Tensor y;
  Tensor dz;  // the part of dy that passes the ReLU: written unless empty
  // Added to dy first, and the sum rounded; then dz is not empty. May be dz. Empty unless
  // TailFusion::adds_to_dy().
  Tensor dy_addend;
};

// Layers that can do what follows them as they write y: saves writing and reading that once more.
// They neither read their own output again, which is written nowhere, nor mind that y is x.
// Internal to Sequential, the residual layer and the layers in engine/nn/layers that implement this
// next to Layer; other layers know nothing of it. The caller decides where to fuse; the bits are
// those of the operations apart, on either side of a cut.
class TailFusion {
 public:
  virtual ~TailFusion() = default;

  // Asked once the layer is prepared.
  virtual bool takes_tail() const { return true; }
  // Runs Layer::Forward; y is the result of the tail.
  virtual absl::Status ForwardWithTail(const LayerArgs& args, const Tail& tail) = 0;
  // Runs Layer::Backward; dy is the gradient of the tail's ReLU output. dx may be dy if dz is
  // empty.
  virtual absl::Status BackwardWithTail(const LayerArgs& args, const TailGradient& tail) = 0;
  virtual bool adds_to_dy() const { return false; }

  // Whether the layer is a norm that can leave the pass that writes y to another layer, whose tail
  // adds it; and whether it is such another layer.
  virtual bool defers_y() const { return false; }
  virtual bool takes_deferred_y() const { return false; }
  // Does all of Layer::Forward but write y.
  virtual absl::Status ForwardDeferred(const LayerArgs& args) { return ForwardWithTail(args, {}); }
  // Returns how y follows from x after ForwardDeferred with the same arguments.
  virtual kernels::OtherImageNorm DeferredNorm(const LayerArgs& /*args*/) const { return {}; }
};

// Implemented next to Layer by a layer that is nothing but an activation.
class PlainActivation {
 public:
  virtual ~PlainActivation() = default;
  virtual bool is_relu() const = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_FUSION_TAIL_FUSION_H_
