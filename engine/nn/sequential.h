#ifndef STAGECOACH_ENGINE_NN_SEQUENTIAL_H_
#define STAGECOACH_ENGINE_NN_SEQUENTIAL_H_

#include <memory>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "engine/nn/activation_observer.h"
#include "engine/nn/fusion/norm_fusion.h"
#include "engine/nn/fusion/sum_fusion.h"
#include "engine/nn/fusion/tail_fusion.h"
#include "engine/nn/last_use_checker.h"
#include "engine/nn/layer.h"
#include "engine/nn/skips.h"
#include "kernels/ops/elementwise.h"
#include "partition/cost/stage_memory.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::engine {

// Consecutive layers run as one: decides where each activation and gradient between two of them
// lies (partition::LayOutStage), and calls them in order. A stage is such a chain, and so is the
// inside of a residual layer.
//
// The arguments `parameters` and `gradients` of a call are those of all layers one after the other,
// and the four areas have at least the sizes in memory(). Movable; as thread-bound as its layers.
class Sequential {
 public:
  // Prepares fresh layers for the context. An error names the layer: its index counts from
  // `first_index`. `skips`: those of the model that the layers belong to. In the calls below, the
  // chain's x, y, dx and dy are then the first tensors of bundles (Skips::BundleAfter).
  static absl::StatusOr<Sequential> Prepare(absl::Span<const LayerFactory> factories,
                                            const LayerContext& context, int first_index,
                                            const Skips& skips = {});
  // Ensures that layer i has at least that much scratch. Pre-condition: LayOut was not called yet.
  void ReserveWorkspace(int i, int64_t bytes);
  // Lays the chain out, once, before any other call below. `splits_backward` in the position:
  // BackwardInput and BackwardWeight may be called apart; otherwise Backward alone. `recomputed`:
  // the layers that repeat F within B, ascending; none unless the position trains.
  void LayOut(const partition::StagePosition& position, const partition::EndMemory& ends,
              absl::Span<const int> recomputed = {});

  int size() const { return static_cast<int>(layers_.size()); }
  const LayerSpec& spec(int i) const { return layers_[static_cast<size_t>(i)].spec; }
  // Returns the shape of one sample entering layer i.
  const Shape& input(int i) const { return layers_[static_cast<size_t>(i)].input; }
  const Shape& output() const { return layers_.back().spec.output; }
  // Returns the position of layer i's first parameter among those of the chain; for size(), their
  // number.
  int first_parameter(int i) const { return first_parameter_[static_cast<size_t>(i)]; }
  // The memory that the chain takes.
  const schedule::StageMemory& memory() const { return memory_; }
  // Bytes of LayerArgs::cache: those of all layers, one after the other.
  int64_t cache_bytes() const { return cache_bytes_; }
  bool computes_loss() const { return layers_.back().spec.computes_loss; }  // by the last layer
  // True if the first layer can take over the sums around the chain.
  bool adds_to_x() const { return layers_.front().abilities.adds_to_x; }
  bool adds_to_dx() const { return layers_.front().abilities.adds_to_dx; }

  // True if the last layer can also do what follows the chain.
  bool takes_tail() const { return layers_.back().tail_fusion != nullptr; }
  // True if Backward with these arguments also takes the gradient of such a tail, and writes dz:
  // the last layer does so on the way to its dx.
  bool takes_tail_gradient(const LayerArgs& args) const {
    return takes_tail() && size() - 1 > FirstBackward(args);
  }
  // True if Forward can leave the output to a chain whose last layer adds it (Tail::defers_y), and
  // whether this is one that takes it.
  bool defers_y() const { return takes_tail() && layers_.back().tail_fusion->defers_y(); }
  bool takes_deferred_y() const {
    return takes_tail() && layers_.back().tail_fusion->takes_deferred_y();
  }
  // Returns that output after such a Forward, as an addend.
  Tail DeferredOutput(const LayerArgs& args) const;
  bool tail_adds_to_dy() const { return takes_tail() && layers_.back().tail_fusion->adds_to_dy(); }

  // Shows the layers' results to `watch` from now on, until it is null. Those inside a layer are
  // not shown.
  void Watch(ActivationObserver* watch) { watch_ = watch; }

  // `x_addend`, `dx_addend`: see SumFusion, for the first layer; empty unless it can add them.
  // `tail`: see TailFusion, for the last layer.
  absl::Status Forward(const LayerArgs& args, const Tensor& x_addend = {},
                       const Tail& tail = {}) const;
  absl::Status BackwardInput(const LayerArgs& args, const Tensor& dx_addend = {}) const;
  // `after_layer(i)` is called once layer i's gradients are complete for this micro-batch and
  // nothing of this micro-batch reads its parameters any more.
  using AfterLayer = absl::FunctionRef<absl::Status(int)>;
  absl::Status BackwardWeight(const LayerArgs& args, AfterLayer after_layer) const;
  // Runs both, layer by layer from the last to the first. `tail`: dy is the gradient of the last
  // layer's tail, which has a ReLU.
  absl::Status Backward(const LayerArgs& args, AfterLayer after_layer, const Tensor& dx_addend = {},
                        const std::optional<TailGradient>& tail = std::nullopt) const;

 private:
  struct ChainedLayer {
    std::unique_ptr<Layer> layer;
    LayerSpec spec;
    Shape input;
    int64_t cache = 0;            // offset of its cache in that of the chain
    SumFusion* fusion = nullptr;  // the layer, if it implements this
    SumFusion::Abilities abilities;
    bool defers_sum = false;            // to the next layer
    TailFusion* tail_fusion = nullptr;  // the layer, if it takes a tail
    bool is_relu = false;
    const PlainNorm* norm = nullptr;    // the layer, if it is one
    NormFusion* norm_fusion = nullptr;  // the layer, if it takes a norm
    bool joins_next = false;            // a norm that the next layer can compute
    bool recomputes = false;            // repeats F within B
    std::vector<Skips::Relay> skips;
  };

  Sequential() = default;
  void DeferSums();
  void JoinNorms();
  bool StartsSkip(int i) const;  // with layer i's output
  // Returns whether layer i also does the next one, a ReLU, as its tail: unless someone else sees
  // what is between them.
  bool HasRelu(int i) const;
  // Returns whether layer i, a norm, is left to the next one in this call.
  bool IsLeftToNext(int i, const LayerArgs& args, const Tensor& x_addend) const;
  LayerArgs ArgsOf(int i, const LayerArgs& args, bool backward) const;
  Tensor XOf(int i, const LayerArgs& args) const;
  // Returns an error of layer i with its name.
  absl::Status Named(int i, const absl::Status& status) const;
  // Calls an operation of layer i. Errors, including exceptions of the layer, name both.
  absl::Status Call(int i, absl::string_view operation,
                    absl::FunctionRef<absl::Status(Layer&)> call) const;
  // Calls a backward operation, whose arguments `use_check_` may change.
  absl::Status CallBackward(int i, absl::string_view operation, LastUse use, const LayerArgs& own,
                            absl::FunctionRef<absl::Status(Layer&, const LayerArgs&)> call) const;
  // Returns a skip, or its gradient, in the workspace's area or in the bundle that begins with
  // `activation`.
  Tensor SkipAt(const Skips::Place& place, const Shape& sample, const LayerArgs& args,
                const Tensor& activation) const;
  // Called after layer i's F: passes its output, and what goes past it, on as skips.
  absl::Status PassSkips(int i, const LayerArgs& args, const Tensor& y) const;
  // Called before layer i's B: adds the gradients of the skips that began with its output to dy,
  // and passes back those that go past it.
  absl::Status PassGradients(int i, const LayerArgs& args, const Tensor& dy) const;
  // Returns the first layer whose B is needed: those before it are frozen, and nobody wants the
  // gradient of their input.
  int FirstBackward(const LayerArgs& args) const { return args.dx.empty() ? frozen_layers_ : 0; }
  // Runs layer i's B, with `dx_addend` for the first one, after another F if it is recomputed.
  // `own`: the layer's part of `args`.
  absl::Status BackwardInputOf(int i, const LayerArgs& args, const LayerArgs& own,
                               const Tensor& dx_addend) const;
  absl::Status ForwardAgain(int i, const LayerArgs& args, LayerArgs own) const;
  // Runs layer i's W.
  absl::Status BackwardWeightOf(int i, const LayerArgs& own) const;
  // Runs both at once. `tail`: that of the last layer. `dy_addend`: what the next layer has left to
  // be added to this one's dy; then what this one leaves to the layer before.
  absl::Status BackwardOf(int i, const LayerArgs& args, const LayerArgs& own,
                          const Tensor& dx_addend, const std::optional<TailGradient>& tail,
                          Tensor& dy_addend) const;
  // Returns whether layer i's Backward leaves the sum that ends it to the layer before, which reads
  // dx anyway: unless someone else sees what is between them.
  bool DefersDxSum(int i, const LayerArgs& args) const;
  // Shows what layer i has produced in F.
  absl::Status ShowForward(int i, const LayerArgs& own) const;
  absl::Status ShowLoss(int i, const LayerArgs& own) const;
  absl::Status ShowBackward(int i, absl::Span<const Tensor> made) const {
    return watch_ == nullptr ? absl::OkStatus()
                             : watch_->OnTensor(Pass::kBackward, first_index_ + i, made);
  }

  kernels::ElementwiseOps* elementwise_ = nullptr;
  ActivationObserver* watch_ = nullptr;
  int first_index_ = 0;
  int64_t rows_ = 0;
  kernels::DType type_ = kernels::DType::kFloat32;        // of activations
  kernels::DType input_type_ = kernels::DType::kFloat32;  // of the first layer's x
  bool checks_use_ = false;
  std::vector<ChainedLayer> layers_;
  // The first ones, before any that is trained; 0 if none of them is frozen.
  int frozen_layers_ = 0;
  std::vector<int> first_parameter_;
  int64_t cache_bytes_ = 0;
  schedule::StageMemory memory_;
  std::vector<partition::LayerPlaces> places_;  // index: layer
  std::unique_ptr<LastUseChecker> use_check_;   // once laid out to train, on a CPU device
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_SEQUENTIAL_H_
