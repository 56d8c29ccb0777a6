#ifndef STAGECOACH_ENGINE_MODEL_CHAIN_H_
#define STAGECOACH_ENGINE_MODEL_CHAIN_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/model/layer.h"
#include "engine/model/layer_watch.h"
#include "engine/model/skips.h"
#include "engine/model/sum_fusion.h"
#include "engine/model/tail_fusion.h"
#include "engine/model/use_check.h"
#include "kernels/ops/elementwise.h"
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
  // `first_index`. `skips`: of the model whose layers these are. In the calls below, the chain's x,
  // y, dx and dy then are the first tensors of bundles (Skips::BundleAfter).
  static absl::StatusOr<Chain> Prepare(absl::Span<const LayerFactory> factories,
                                       const LayerContext& context, int first_index,
                                       const Skips& skips = {});
  // Before it is laid out: gives layer i at least that much scratch.
  void ReserveWorkspace(int i, int64_t bytes);
  // Lays it out, once, before any other call below. `splits_backward` in the position:
  // BackwardInput and BackwardWeight may be called apart; otherwise Backward alone. `recomputed`:
  // the layers that do F again within B, ascending; none unless the position trains.
  void LayOut(const partition::StagePosition& position, const partition::EndMemory& ends,
              absl::Span<const int> recomputed = {});

  int size() const { return static_cast<int>(layers_.size()); }
  const LayerSpec& spec(int i) const { return layers_[static_cast<size_t>(i)].spec; }
  // Shape of one sample entering layer i.
  const Shape& input(int i) const { return layers_[static_cast<size_t>(i)].input; }
  const Shape& output() const { return layers_.back().spec.output; }
  // Position of layer i's first parameter among those of the chain; of size(): their number.
  int first_parameter(int i) const { return first_parameter_[static_cast<size_t>(i)]; }
  // What it takes.
  const schedule::StageMemory& memory() const { return memory_; }
  // Of all layers, one after the other: LayerArgs::cache.
  int64_t cache_bytes() const { return cache_bytes_; }
  bool computes_loss() const { return layers_.back().spec.computes_loss; }  // the last layer
  // The sums around the chain that its first layer can take over.
  bool adds_to_x() const { return layers_.front().abilities.adds_to_x; }
  bool adds_to_dx() const { return layers_.front().abilities.adds_to_dx; }

  // Whether its last layer can do what follows the chain.
  bool takes_tail() const { return layers_.back().tail_fusion != nullptr; }

  // What its layers make is shown to `watch` from now on, until it is null. Those inside a layer
  // are not seen.
  void Watch(LayerWatch* watch) { watch_ = watch; }

  // `x_addend`, `dx_addend`: as in SumFusion, for the first layer; empty unless it can. `tail`: as
  // in TailFusion, for the last one.
  absl::Status Forward(const LayerArgs& args, const Tensor& x_addend = {},
                       const Tail& tail = {}) const;
  absl::Status BackwardInput(const LayerArgs& args, const Tensor& dx_addend = {}) const;
  // `after_layer(i)` is called once layer i's gradients are complete for this micro-batch and
  // nothing of this micro-batch reads its parameters any more.
  using AfterLayer = absl::FunctionRef<absl::Status(int)>;
  absl::Status BackwardWeight(const LayerArgs& args, AfterLayer after_layer) const;
  // Both, layer by layer from the last to the first. `tail`: dy is of what the last layer's tail
  // gave, which has a ReLU.
  absl::Status Backward(const LayerArgs& args, AfterLayer after_layer, const Tensor& dx_addend = {},
                        const std::optional<TailGradient>& tail = std::nullopt) const;

 private:
  struct ChainedLayer {
    std::unique_ptr<Layer> layer;
    LayerSpec spec;
    Shape input;
    int64_t cache = 0;            // where its own is among those of the chain
    SumFusion* fusion = nullptr;  // the layer, if it implements that
    SumFusion::Abilities abilities;
    bool defers_sum = false;            // to the next layer
    TailFusion* tail_fusion = nullptr;  // the layer, if it implements that
    bool is_relu = false;
    bool recomputes = false;  // does F again within B
    std::vector<Skips::Passage> skips;
  };

  Chain() = default;
  void DeferSums();
  bool StartsSkip(int i) const;  // with layer i's output
  // Whether layer i does the next one, a ReLU, as its tail: unless someone else sees what is
  // between them.
  bool HasRelu(int i) const;
  LayerArgs ArgsOf(int i, const LayerArgs& args, bool backward) const;
  Tensor XOf(int i, const LayerArgs& args) const;
  // An error of layer i, which it then names.
  absl::Status Named(int i, const absl::Status& status) const;
  // Calls an operation of layer i. An error, also of what the layer throws, names both.
  absl::Status Call(int i, absl::string_view operation,
                    absl::FunctionRef<absl::Status(Layer&)> call) const;
  // A backward operation, of which `use_check_` may change the arguments.
  absl::Status CallBackward(int i, absl::string_view operation, LastUse use, const LayerArgs& own,
                            absl::FunctionRef<absl::Status(Layer&, const LayerArgs&)> call) const;
  // A skip, or its gradient, in the workspace's area or the bundle that begins with `activation`.
  Tensor SkipAt(const Skips::Place& place, const Shape& sample, const LayerArgs& args,
                const Tensor& activation) const;
  // After layer i's F: its output and what passes it go on as skips.
  absl::Status PassSkips(int i, const LayerArgs& args, const Tensor& y) const;
  // Before layer i's B: dy gets the gradients of the skips that its output began, and those that
  // pass it go back.
  absl::Status PassGradients(int i, const LayerArgs& args, const Tensor& dy) const;
  // Layer i's B with `dx_addend` for the first one, after F once more if it recomputes. `own`: the
  // layer's part of `args`.
  absl::Status BackwardInputOf(int i, const LayerArgs& args, const LayerArgs& own,
                               const Tensor& dx_addend) const;
  absl::Status ForwardAgain(int i, const LayerArgs& args, LayerArgs own) const;
  // Layer i's W.
  absl::Status BackwardWeightOf(int i, const LayerArgs& own) const;
  // Both at once. `tail`: of the last layer.
  absl::Status BackwardOf(int i, const LayerArgs& args, const LayerArgs& own,
                          const Tensor& dx_addend, const std::optional<TailGradient>& tail) const;
  // Shows what layer i has made in F.
  absl::Status ShowForward(int i, const LayerArgs& own) const;
  absl::Status ShowLoss(int i, const LayerArgs& own) const;
  absl::Status ShowBackward(int i, absl::Span<const Tensor> made) const {
    return watch_ == nullptr ? absl::OkStatus()
                             : watch_->Saw(Pass::kBackward, first_index_ + i, made);
  }

  kernels::ElementwiseOps* elementwise_ = nullptr;
  LayerWatch* watch_ = nullptr;
  int first_index_ = 0;
  int64_t rows_ = 0;
  kernels::DType type_ = kernels::DType::kFloat32;        // of activations
  kernels::DType input_type_ = kernels::DType::kFloat32;  // of the first layer's x
  bool checks_use_ = false;
  std::vector<ChainedLayer> layers_;
  std::vector<int> first_parameter_;
  int64_t cache_bytes_ = 0;
  schedule::StageMemory memory_;
  std::vector<partition::LayerPlaces> places_;  // index: layer
  std::unique_ptr<UseCheck> use_check_;         // once laid out to train, on a CPU device
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODEL_CHAIN_H_
