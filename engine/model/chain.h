#ifndef STAGECOACH_ENGINE_MODEL_CHAIN_H_
#define STAGECOACH_ENGINE_MODEL_CHAIN_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/layer.h"

namespace stagecoach::engine {

// Consecutive layers run as one: decides where each activation and gradient between two of them
// lies, and calls them in order. A stage is a chain, and so is the inside of a residual layer. The
// rules of the layout are those of partition/stage_memory.h.
//
// In the arguments of a call, `parameters` and `gradients` are those of all layers one after the
// other, and the four areas have at least the sizes that the chain states. Movable; as thread-bound
// as its layers.
class Chain {
 public:
  // Prepares fresh layers for the context. `splits_backward`: BackwardInput and BackwardWeight will
  // be called apart; otherwise Backward. An error names the layer: its index counts from
  // `first_index`.
  static absl::StatusOr<Chain> Prepare(absl::Span<const LayerFactory> factories,
                                       const LayerContext& context, bool splits_backward,
                                       int first_index);

  int size() const { return static_cast<int>(links_.size()); }
  const LayerSpec& spec(int i) const { return links_[static_cast<size_t>(i)].spec; }
  // Shape of one sample entering layer i.
  const Shape& input(int i) const { return links_[static_cast<size_t>(i)].input; }
  const Shape& output() const { return links_.back().spec.output; }
  // Position of layer i's first parameter among those of the chain; of size(): their number.
  int first_parameter(int i) const { return first_parameter_[static_cast<size_t>(i)]; }

  int64_t stash_bytes() const { return stash_bytes_; }
  int64_t weight_stash_bytes() const { return weight_stash_bytes_; }
  int64_t gradient_stash_bytes() const { return gradient_stash_bytes_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

  absl::Status Forward(const LayerArgs& args) const;
  absl::Status BackwardInput(const LayerArgs& args) const;
  // `after_layer(i)` is called once layer i's gradients are complete for this micro-batch and
  // nothing of this micro-batch reads its parameters any more.
  using AfterLayer = absl::FunctionRef<absl::Status(int)>;
  absl::Status BackwardWeight(const LayerArgs& args, AfterLayer after_layer) const;
  // Both, layer by layer from the last to the first.
  absl::Status Backward(const LayerArgs& args, AfterLayer after_layer) const;

 private:
  enum class Area : uint8_t { kStash, kWeightStash, kGradientStash, kWorkspace };
  struct Place {
    Area area = Area::kWorkspace;
    int64_t offset = 0;
  };
  struct Link {
    std::unique_ptr<Layer> layer;
    LayerSpec spec;
    Shape input;
    // The layer's own areas.
    int64_t stash = 0, weight_stash = 0;
    Place gradient_stash;
    // Of the activation after this layer, and of its gradient. Unused on the last layer.
    Place output, output_gradient;
    bool defers_add = false;  // of its x, to the next layer
  };

  Chain() = default;
  void LayOut(int64_t rows);
  void DeferAdds();
  static std::byte* Address(const LayerArgs& args, const Place& place);
  LayerArgs ArgsOf(int i, const LayerArgs& args, bool backward) const;

  int64_t rows_ = 0;
  kernels::DType type_ = kernels::DType::kFloat32;  // of activations
  bool splits_backward_ = false;
  std::vector<Link> links_;
  std::vector<int> first_parameter_;
  int64_t stash_bytes_ = 0, weight_stash_bytes_ = 0, gradient_stash_bytes_ = 0,
          workspace_bytes_ = 0;
  int64_t scratch_offset_ = 0;  // of the layers' own scratch within the workspace
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_CHAIN_H_
