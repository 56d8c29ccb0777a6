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

// Layers that can do what follows them as they write y: saves writing and reading that once more. A
// matter between Chain, the residual layer and the layers in engine/model/layers that implement
// this beside Layer; other layers know nothing of it. Who calls decides where; the bits are those
// of the operations apart, on either side of a cut.
class TailFusion {
 public:
  virtual ~TailFusion() = default;

  // Whether the prepared layer can. It then neither reads its own output again, which is written
  // nowhere, nor minds that y is x.
  virtual bool takes_tail() const = 0;

  // Layer::Forward, with y what the tail makes of it.
  virtual absl::Status ForwardWithTail(const LayerArgs& args, const Tail& tail) = 0;
  // Layer::Backward of the layer and a ReLU alone after it: dy is of what the ReLU gave, which need
  // not be there any more. dx may be dy.
  virtual absl::Status BackwardWithRelu(const LayerArgs& args) = 0;
};

// Beside Layer, of a layer that does nothing else than an activation.
class PlainActivation {
 public:
  virtual ~PlainActivation() = default;
  virtual bool is_relu() const = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_TAIL_FUSION_H_
