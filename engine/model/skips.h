#ifndef STAGECOACH_ENGINE_MODEL_SKIPS_H_
#define STAGECOACH_ENGINE_MODEL_SKIPS_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/bundle.h"
#include "kernels/tensor.h"
#include "partition/layer_cost.h"

namespace stagecoach::engine {

// Layer `to` reads, besides the output of the layer before it, that of layer `from`.
struct Skip {
  int from = 0;
  int to = 0;

  friend bool operator==(const Skip&, const Skip&) = default;
};

// Where the skips of a model are, at one micro-batch size and type. Each is a tensor of its own, a
// copy of its layer's output: it passes every boundary from the one after `from` to the one before
// `to`. Where a stage begins or ends, it is in the bundle, behind the activation; those of a bundle
// are in order of `from`, then of `to`. At the boundaries within a stage it is in an area of the
// stage's workspace, always at the same offset, so that only stages copy it and layers do not. Its
// gradient goes back through the same places. A value.
class Skips {
 public:
  Skips() = default;  // none
  // InvalidArgument: a layer is none of the `layers`, reads an earlier one's output in another way
  // (the layer before it), or reads two.
  static absl::StatusOr<Skips> Create(absl::Span<const Skip> skips, int layers, int64_t rows,
                                      kernels::DType type);
  // What one sample of the layer's output is: to be said of all layers, in order, each before the
  // questions below of the boundary after it.
  void SetOutput(int layer, const kernels::Shape& sample);

  // What one sample is of the tensor that a layer reads so; nothing if it reads none.
  std::optional<kernels::Shape> ReadBy(int layer) const;
  // All that passes the boundary after a layer whose output is `activation`.
  Bundle BundleAfter(int layer, const kernels::Shape& activation) const;
  // Completes a prepared layer's memory: input_bytes, passing_bytes and skip_area_bytes.
  void AddTo(int layer, const kernels::Shape& input, const kernels::Shape& output,
             partition::LayerMemory& memory) const;

  // Where a skip is at a boundary.
  struct Place {
    bool is_in_area = false;  // else in the bundle
    int64_t offset = 0;       // in either
  };
  // A skip at a layer: one that begins with its output has no `before`; one that it reads, no
  // `after`; the others pass.
  struct Passage {
    kernels::Shape sample;
    std::optional<Place> before, after;

    // Where layers need not copy it.
    bool stays() const {
      return before.has_value() && after.has_value() && before->is_in_area && after->is_in_area;
    }
  };
  // A layer of a stage of the layers `first` to `last`.
  struct LayerOfStage {
    int layer = 0, first = 0, last = 0;
    kernels::Shape input, output;
  };
  // Those at a layer, in order. The samples of `input` and `output` are those of the activations.
  std::vector<Passage> PassagesAt(const LayerOfStage& place) const;

 private:
  struct PlacedSkip {
    Skip skip;
    kernels::Shape sample;
    int64_t offset = 0;
    int64_t bytes = 0;  // rounded up

    bool passes(int boundary) const { return skip.from <= boundary && boundary < skip.to; }
  };
  // In the bundle after a layer whose output is `activation`.
  Place InBundle(const PlacedSkip& skip, int layer, const kernels::Shape& activation) const;

  int64_t rows_ = 0;
  kernels::DType type_ = kernels::DType::kFloat32;
  std::vector<PlacedSkip> skips_;  // ordered
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_SKIPS_H_
