#ifndef STAGECOACH_ENGINE_NN_SKIPS_H_
#define STAGECOACH_ENGINE_NN_SKIPS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/nn/boundary_tensors.h"
#include "kernels/tensor.h"
#include "partition/cost/layer_cost.h"

namespace stagecoach::engine {

// Layer `to` reads the output of layer `from`, besides that of the layer before it.
struct Skip {
  int from = 0;
  int to = 0;

  friend bool operator==(const Skip&, const Skip&) = default;
};

// The places of a model's skips, at one micro-batch size and type. Each is a tensor of its own, a
// copy of its layer's output: it passes every boundary from the one after `from` to the one before
// `to`. At the beginning and the end of a stage, it is in the bundle, behind the activation; those
// of a bundle are in order of `from`, then of `to`. At the boundaries within a stage it is in an
// area of the stage's workspace, always at the same offset, so that only stages copy it and layers
// do not. Its gradient goes back through the same places. Regular value type.
class Skips {
 public:
  Skips() = default;  // none
  // Checks and sorts the skips. InvalidArgument: a layer is none of the `layers`, reads the output
  // of a layer that is not earlier than the one before it, or reads two.
  static absl::StatusOr<Skips> Create(absl::Span<const Skip> skips, int layers, int64_t rows,
                                      kernels::DType type);
  // Sets the shape of one sample of the layer's output: to be called for all layers, in order, each
  // before the questions below about the boundary after it.
  void SetOutput(int layer, const kernels::Shape& sample);

  // Returns the shape of one sample of the skip that a layer reads; nothing if it reads none.
  std::optional<kernels::Shape> ReadBy(int layer) const;
  // Returns all that passes the boundary after a layer whose output is `activation`.
  BoundaryTensors BundleAfter(int layer, const kernels::Shape& activation) const;
  // Completes a prepared layer's memory: input_bytes, passing_bytes and skip_area_bytes.
  void AddTo(int layer, const kernels::Shape& input, const kernels::Shape& output,
             partition::LayerMemory& memory) const;

  // The place of a skip at a boundary.
  struct Place {
    bool is_in_area = false;  // otherwise in the bundle
    int64_t offset = 0;       // in either
  };
  // A skip at a layer: one that begins with its output has no `before`; one that the layer reads
  // has no `after`; the others pass.
  struct Relay {
    kernels::Shape sample;
    std::optional<Place> before, after;

    // True if layers need not copy it.
    bool stays() const {
      return before.has_value() && after.has_value() && before->is_in_area && after->is_in_area;
    }
  };
  // A layer of a stage of the layers `first` to `last`.
  struct LayerOfStage {
    int layer = 0, first = 0, last = 0;
    kernels::Shape input, output;
  };
  // Returns the skips at a layer, in order. The samples of `input` and `output` are those of the
  // activations.
  std::vector<Relay> PassagesAt(const LayerOfStage& place) const;

 private:
  struct PlacedSkip {
    Skip skip;
    kernels::Shape sample;
    int64_t offset = 0;
    int64_t bytes = 0;  // rounded up

    bool passes(int boundary) const { return skip.from <= boundary && boundary < skip.to; }
  };
  // Returns the place in the bundle after a layer whose output is `activation`.
  Place InBundle(const PlacedSkip& skip, int layer, const kernels::Shape& activation) const;

  int64_t rows_ = 0;
  kernels::DType type_ = kernels::DType::kFloat32;
  std::vector<PlacedSkip> skips_;  // ordered
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_SKIPS_H_
