#ifndef STAGECOACH_ENGINE_MODEL_CHAIN_H_
#define STAGECOACH_ENGINE_MODEL_CHAIN_H_

#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/layer.h"
#include "engine/model/sum_fusion.h"
#include "partition/stage_memory.h"
#include "schedule/memory.h"

namespace stagecoach::engine {

// Consecutive layers run as one: decides where each activation and gradient between two of them
// lies (partition::LayOutStage), and calls them in order. A stage is a chain, and so is the inside
// of a residual layer.
//
// In the arguments of a call, `parameters` and `gradients` are those of all layers one after the
// other, and the four areas have at least the sizes in memory(). Movable; as thread-bound as its
// layers.
class Chain {
 public:
  // Prepares fresh layers for the context. An error names the layer: its index counts from
  // `first_index`.
  static absl::StatusOr<Chain> Prepare(absl::Span<const LayerFactory> factories,
                                       const LayerContext& context, int first_index);
  // Lays it out, once, before any other call below. `splits_backward` in the position:
  // BackwardInput and BackwardWeight will be called apart; otherwise Backward.
  void LayOut(const partition::StagePosition& position, const partition::EndMemory& ends);

  int size() const { return static_cast<int>(layers_.size()); }
  const LayerSpec& spec(int i) const { return layers_[static_cast<size_t>(i)].spec; }
  // Shape of one sample entering layer i.
  const Shape& input(int i) const { return layers_[static_cast<size_t>(i)].input; }
  const Shape& output() const { return layers_.back().spec.output; }
  // Position of layer i's first parameter among those of the chain; of size(): their number.
  int first_parameter(int i) const { return first_parameter_[static_cast<size_t>(i)]; }
  // What it takes.
  const schedule::StageMemory& memory() const { return memory_; }
  // The sums around the chain that its first layer can take over.
  bool adds_to_x() const { return layers_.front().abilities.adds_to_x; }
  bool adds_to_dx() const { return layers_.front().abilities.adds_to_dx; }

  // `x_addend`, `dx_addend`: as in SumFusion, for the first layer; empty unless it can.
  absl::Status Forward(const LayerArgs& args, const Tensor& x_addend = {}) const;
  absl::Status BackwardInput(const LayerArgs& args, const Tensor& dx_addend = {}) const;
  // `after_layer(i)` is called once layer i's gradients are complete for this micro-batch and
  // nothing of this micro-batch reads its parameters any more.
  using AfterLayer = absl::FunctionRef<absl::Status(int)>;
  absl::Status BackwardWeight(const LayerArgs& args, AfterLayer after_layer) const;
  // Both, layer by layer from the last to the first.
  absl::Status Backward(const LayerArgs& args, AfterLayer after_layer) const;

 private:
  struct ChainedLayer {
    std::unique_ptr<Layer> layer;
    LayerSpec spec;
    Shape input;
    SumFusion* fusion = nullptr;  // the layer, if it implements that
    SumFusion::Abilities abilities;
    bool defers_sum = false;  // to the next layer
  };

  Chain() = default;
  void DeferSums();
  LayerArgs ArgsOf(int i, const LayerArgs& args, bool backward) const;
  Tensor XOf(int i, const LayerArgs& args) const;
  // Layer i's BackwardInput, with `dx_addend` for the first one.
  absl::Status BackwardInputOf(int i, const LayerArgs& own, const Tensor& dx_addend) const;

  int64_t rows_ = 0;
  kernels::DType type_ = kernels::DType::kFloat32;  // of activations
  std::vector<ChainedLayer> layers_;
  std::vector<int> first_parameter_;
  schedule::StageMemory memory_;
  std::vector<partition::LayerPlaces> places_;  // index: layer
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_CHAIN_H_
