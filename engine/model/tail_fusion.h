#ifndef STAGECOACH_ENGINE_MODEL_TAIL_FUSION_H_
#define STAGECOACH_ENGINE_MODEL_TAIL_FUSION_H_

#include "absl/status/status.h"
#include "engine/model/layer.h"

namespace stagecoach::engine {

// What follows a layer in the same pass over memory: first the sum, then the ReLU.
struct Tail {
  Tensor addend;  // y += addend; empty: none. It may be in the memory of y.
  bool has_relu = false;

  bool empty() const { return addend.empty() && !has_relu; }
};

// How the gradient comes back through a tail with a ReLU.
struct TailGradient {
  // What the ReLU gave. Empty: there was no addend, and it need not be there any more.
  Tensor y;
  Tensor dz;  // what of dy passes the ReLU: written unless empty
};

// Layers that can do what follows them as they write y: saves writing and reading that once more.
// They neither read their own output again, which is written nowhere, nor mind that y is x. A
// matter between Chain, the residual layer and the layers in engine/model/layers that implement
// this beside Layer; other layers know nothing of it. Who calls decides where; the bits are those
// of the operations apart, on either side of a cut.
class TailFusion {
 public:
  virtual ~TailFusion() = default;

  // Layer::Forward, with y what the tail makes of it.
  virtual absl::Status ForwardWithTail(const LayerArgs& args, const Tail& tail) = 0;
  // Layer::Backward, with dy that of what the ReLU of the tail gave. dx may be dy if dz is empty.
  virtual absl::Status BackwardWithTail(const LayerArgs& args, const TailGradient& tail) = 0;
};

// Beside Layer, of a layer that does nothing else than an activation.
class PlainActivation {
 public:
  virtual ~PlainActivation() = default;
  virtual bool is_relu() const = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_TAIL_FUSION_H_
