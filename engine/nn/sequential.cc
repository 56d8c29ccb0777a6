#include "engine/nn/sequential.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/catch_exceptions.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/nn/parameter_table.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

using partition::Place;

std::byte* AreaOf(const LayerArgs& args, Place::Area area) {
  switch (area) {
    case Place::Area::kStash:
      return args.stash;
    case Place::Area::kWeightStash:
      return args.weight_stash;
    case Place::Area::kGradientStash:
      return args.gradient_stash;
    case Place::Area::kWorkspace:
      return args.workspace;
  }
  return nullptr;
}

// Returns null in an area that the operation does not have.
std::byte* AddressIn(const LayerArgs& args, const Place& place) {
  std::byte* const area = AreaOf(args, place.area);
  return area == nullptr ? nullptr : area + place.offset;
}

}  // namespace

absl::StatusOr<Sequential> Sequential::Prepare(absl::Span<const LayerFactory> factories,
                                               const LayerContext& context, int first_index,
                                               const Skips& skips) {
  STAGECOACH_CHECK(!factories.empty(), "a chain has at least one layer");
  Sequential chain;
  chain.first_index_ = first_index;
  chain.rows_ = context.rows;
  chain.elementwise_ = &context.device.ops().elementwise();
  chain.type_ = context.device.activation_type();
  chain.input_type_ = InputType(context.device, context.is_fed_ids());
  chain.checks_use_ = context.device.memory_is_host();
  chain.first_parameter_.push_back(0);
  LayerContext next = context;
  bool is_untrained = true, has_frozen = false;  // the layers so far
  const bool is_inside = !context.parameter_prefix.empty();
  int number = 0;  // of the layer in the list
  for (const LayerFactory& factory : factories) {
    const bool is_last = &factory == &factories.back();
    next.feeds_cross_entropy = context.feeds_cross_entropy && is_last;
    next.output_order = is_last ? context.output_order : std::nullopt;
    const int index = first_index + number;
    next.skip = skips.ReadBy(index);
    next.random_stream = StreamOfLayer(context.random_stream, index);
    if (is_inside) {
      next.number_in_list = number;
    } else {
      next.parameter_prefix = NameOf({index, ""});
    }
    ChainedLayer chained{.input = next.input};
    const auto prepare = [&]() -> absl::Status {
      ASSIGN_OR_RETURN(PreparedLayer prepared, PrepareLayer(factory, next));
      chained.layer = std::move(prepared.layer);
      chained.spec = std::move(prepared.spec);
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(base::Annotate(prepare(), absl::StrCat("layer ", index)));
    chained.cache = chain.cache_bytes_;
    chain.cache_bytes_ += chained.spec.memory.cache_bytes;
    chained.fusion = dynamic_cast<SumFusion*>(chained.layer.get());
    if (chained.fusion != nullptr) chained.abilities = chained.fusion->abilities();
    chained.tail_fusion = dynamic_cast<TailFusion*>(chained.layer.get());
    if (chained.tail_fusion != nullptr && !chained.tail_fusion->takes_tail()) {
      chained.tail_fusion = nullptr;
    }
    chained.norm = dynamic_cast<const PlainNorm*>(chained.layer.get());
    chained.norm_fusion = dynamic_cast<NormFusion*>(chained.layer.get());
    if (chained.norm_fusion != nullptr && !chained.norm_fusion->takes_norm()) {
      chained.norm_fusion = nullptr;
    }
    const auto* const activation = dynamic_cast<const PlainActivation*>(chained.layer.get());
    chained.is_relu = activation != nullptr && activation->is_relu();
    skips.AddTo(index, next.input, chained.spec.output, chained.spec.memory);
    chained.skips = skips.PassagesAt({.layer = index,
                                      .first = first_index,
                                      .last = first_index + static_cast<int>(factories.size()) - 1,
                                      .input = next.input,
                                      .output = chained.spec.output});
    if (is_untrained && chained.spec.is_frozen()) has_frozen = true;
    is_untrained = is_untrained && (chained.spec.is_frozen() || chained.spec.parameters.empty());
    if (is_untrained && has_frozen) chain.frozen_layers_ = index - first_index + 1;
    next.input = chained.spec.output;
    next.vocabulary = 0;
    number += is_inside ? chained.spec.stands_for : 1;
    chain.first_parameter_.push_back(chain.first_parameter_.back() +
                                     static_cast<int>(chained.spec.parameters.size()));
    chain.layers_.push_back(std::move(chained));
  }
  return chain;
}

void Sequential::ReserveWorkspace(int i, int64_t bytes) {
  int64_t& workspace = layers_[static_cast<size_t>(i)].spec.memory.workspace_bytes;
  workspace = std::max(workspace, bytes);
}

void Sequential::LayOut(const partition::StagePosition& position, const partition::EndMemory& ends,
                        absl::Span<const int> recomputed) {
  std::vector<partition::LayerMemory> layers;
  for (const ChainedLayer& chained : layers_) layers.push_back(chained.spec.memory);
  for (const int i : recomputed) {
    const auto index = static_cast<size_t>(i);
    layers_[index].recomputes = true;
    layers[index] = partition::RecomputedMemory(layers[index], kRecomputeStashBytes);
  }
  memory_ = LayOutStage(layers, ends, position, &places_);
  DeferSums();
  JoinNorms();
  if (!checks_use_ || !position.trains) return;
  use_check_ = std::make_unique<LastUseChecker>();
  for (int i = 0; i < size(); ++i) {
    use_check_->Add(spec(i), {nullptr, i == 0 ? input_type_ : type_, input(i).Batched(rows_)},
                    {nullptr, type_, spec(i).output.Batched(rows_)});
  }
}

// Leaves the sum that ends one layer to the next, which reads y anyway, if both can. The last
// layer's sum never is left: what leaves a chain is complete, and so is what a later layer reads.
void Sequential::DeferSums() {
  for (size_t i = 0; i + 1 < layers_.size(); ++i) {
    layers_[i].defers_sum = layers_[i].abilities.defers_sum && layers_[i + 1].abilities.adds_to_x &&
                            !StartsSkip(static_cast<int>(i));
  }
}

// Leaves norms to the layers after them that can compute them, where those do not write to the
// norm's input.
void Sequential::JoinNorms() {
  for (size_t i = 0; i + 1 < layers_.size(); ++i) {
    const bool overwrites =
        i > 0 && i + 2 < layers_.size() && places_[i - 1].output == places_[i + 1].output;
    layers_[i].joins_next = layers_[i].norm != nullptr && layers_[i + 1].norm_fusion != nullptr &&
                            !StartsSkip(static_cast<int>(i)) && !overwrites;
  }
}

bool Sequential::IsLeftToNext(int i, const LayerArgs& args, const Tensor& x_addend) const {
  const auto index = static_cast<size_t>(i);
  return layers_[index].joins_next && x_addend.empty() && watch_ == nullptr &&
         layers_[index + 1].norm_fusion->takes_norm_in(args);
}

bool Sequential::StartsSkip(int i) const {
  return absl::c_any_of(layers_[static_cast<size_t>(i)].skips,
                        [](const auto& skip) { return !skip.before.has_value(); });
}

bool Sequential::HasRelu(int i) const {
  if (i + 1 >= size() || watch_ != nullptr || use_check_ != nullptr) return false;
  const ChainedLayer& own = layers_[static_cast<size_t>(i)];
  const ChainedLayer& next = layers_[static_cast<size_t>(i) + 1];
  return own.tail_fusion != nullptr && next.is_relu && !own.recomputes && !next.recomputes &&
         !own.defers_sum && !StartsSkip(i);
}

Tensor Sequential::XOf(int i, const LayerArgs& args) const {
  if (i == 0) return args.x;
  return {AddressIn(args, places_[static_cast<size_t>(i) - 1].output), type_,
          input(i).Batched(rows_)};
}

// Returns the arguments of layer i, given those of the whole chain.
LayerArgs Sequential::ArgsOf(int i, const LayerArgs& args, bool backward) const {
  const auto index = static_cast<size_t>(i);
  const partition::LayerPlaces& places = places_[index];
  const bool is_last = i + 1 == size();
  LayerArgs own = args;
  const auto output = [&](const Place& place) {
    return Tensor{AddressIn(args, place), type_, spec(i).output.Batched(rows_)};
  };
  own.x = XOf(i, args);
  if (!is_last) own.y = output(places.output);
  if (backward) {
    if (i > FirstBackward(args)) {
      own.dx = {AddressIn(args, places_[index - 1].output_gradient), type_,
                input(i).Batched(rows_)};
    }
    if (!is_last) own.dy = output(places.output_gradient);
    own.gradient_stash = AddressIn(args, places.gradient_stash);
  } else {
    own.dx = own.dy = {};
    own.gradient_stash = nullptr;
  }
  for (const Skips::Relay& skip : layers_[index].skips) {
    if (skip.after.has_value()) continue;
    if (backward) {
      own.dskip = SkipAt(*skip.before, skip.sample, args, args.dx);
    } else {
      own.skip = SkipAt(*skip.before, skip.sample, args, args.x);
    }
  }
  const auto begin = static_cast<size_t>(first_parameter(i));
  const size_t count = static_cast<size_t>(first_parameter(i + 1)) - begin;
  own.parameters = args.parameters.subspan(begin, count);
  if (!args.gradients.empty()) own.gradients = args.gradients.subspan(begin, count);
  own.stash = AddressIn(args, places.stash);
  const bool is_first = !backward && layers_[index].recomputes;
  own.weight_stash = AddressIn(args, is_first ? places.first_weight_stash : places.weight_stash);
  own.workspace = AddressIn(args, places.workspace);
  if (args.cache != nullptr) own.cache = args.cache + layers_[index].cache;
  return own;
}

Tensor Sequential::SkipAt(const Skips::Place& place, const Shape& sample, const LayerArgs& args,
                          const Tensor& activation) const {
  std::byte* const begin = place.is_in_area ? AddressIn(args, places_.front().skips)
                                            : static_cast<std::byte*>(activation.data);
  if (begin == nullptr) return {};  // W does not receive the bundle of gradients
  return {begin + place.offset, type_, sample.Batched(rows_)};
}

absl::Status Sequential::PassSkips(int i, const LayerArgs& args, const Tensor& y) const {
  for (const Skips::Relay& skip : layers_[static_cast<size_t>(i)].skips) {
    if (!skip.after.has_value() || skip.stays()) continue;
    const Tensor from =
        skip.before.has_value() ? SkipAt(*skip.before, skip.sample, args, args.x) : y;
    RETURN_IF_ERROR(
        elementwise_->Copy(args.stream, from, SkipAt(*skip.after, skip.sample, args, args.y)));
  }
  return absl::OkStatus();
}

absl::Status Sequential::PassGradients(int i, const LayerArgs& args, const Tensor& dy) const {
  for (const Skips::Relay& skip : layers_[static_cast<size_t>(i)].skips) {
    if (!skip.after.has_value() || skip.stays()) continue;
    const Tensor gradient = SkipAt(*skip.after, skip.sample, args, args.dy);
    if (skip.before.has_value()) {
      RETURN_IF_ERROR(elementwise_->Copy(args.stream, gradient,
                                         SkipAt(*skip.before, skip.sample, args, args.dx)));
    } else {
      RETURN_IF_ERROR(elementwise_->Add(args.stream, dy, gradient, dy));
    }
  }
  return absl::OkStatus();
}

absl::Status Sequential::Named(int i, const absl::Status& status) const {
  if (status.ok()) return status;
  const std::string& name = spec(i).description;
  return base::Annotate(status, absl::StrCat("layer ", first_index_ + i,
                                             name.empty() ? "" : absl::StrCat(" (", name, ")")));
}

absl::Status Sequential::Call(int i, absl::string_view operation,
                              absl::FunctionRef<absl::Status(Layer&)> call) const {
  Layer& layer = *layers_[static_cast<size_t>(i)].layer;
  return Named(i, base::CatchExceptions(operation, [&] { return call(layer); }));
}

absl::Status Sequential::CallBackward(
    int i, absl::string_view operation, LastUse use, const LayerArgs& own,
    absl::FunctionRef<absl::Status(Layer&, const LayerArgs&)> call) const {
  Layer& layer = *layers_[static_cast<size_t>(i)].layer;
  const auto caught = [&](const LayerArgs& args) {
    return base::CatchExceptions(operation, [&] { return call(layer, args); });
  };
  return Named(
      i, use_check_ == nullptr ? caught(own) : use_check_->Call(i, operation, use, own, caught));
}

absl::Status Sequential::Forward(const LayerArgs& args, const Tensor& x_addend,
                                 const Tail& tail) const {
  std::optional<kernels::InputNorm> norm;  // that was left to the layer at hand
  for (int i = 0; i < size(); ++i) {
    const ChainedLayer& chained = layers_[static_cast<size_t>(i)];
    LayerArgs own = ArgsOf(i, args, false);
    Tensor addend = x_addend;
    if (i > 0) {
      addend = layers_[static_cast<size_t>(i) - 1].defers_sum ? XOf(i - 1, args) : Tensor{};
    }
    Tail own_tail = i + 1 == size() ? tail : Tail{};
    if (HasRelu(i)) {
      own_tail.has_relu = true;
      own.y = ArgsOf(i + 1, args, false).y;
    }
    const bool is_left = IsLeftToNext(i, own, addend);
    const bool is_plain = addend.empty() && !chained.defers_sum;
    const bool is_done = is_left || (i > 0 && HasRelu(i - 1));
    if (norm.has_value()) own.x = XOf(i - 1, args);
    if (!is_done) {
      RETURN_IF_ERROR(Call(i, "Forward", [&](Layer& layer) {
        if (norm.has_value()) return chained.norm_fusion->ForwardWithNorm(own, *norm, own_tail);
        if (own_tail.defers_y) return chained.tail_fusion->ForwardDeferred(own);
        if (!own_tail.empty()) return chained.tail_fusion->ForwardWithTail(own, own_tail);
        return is_plain ? layer.Forward(own)
                        : chained.fusion->ForwardFused(own, addend, chained.defers_sum);
      }));
    }
    norm.reset();
    if (is_left) norm = chained.norm->NormOf(own.parameters);
    RETURN_IF_ERROR(PassSkips(i, args, own.y));
    if (watch_ != nullptr) RETURN_IF_ERROR(ShowForward(i, own));
  }
  return absl::OkStatus();
}

Tail Sequential::DeferredOutput(const LayerArgs& args) const {
  const LayerArgs own = ArgsOf(size() - 1, args, false);
  return {.addend = own.x, .addend_norm = layers_.back().tail_fusion->DeferredNorm(own)};
}

// A sum that was left to the next layer is complete once that layer has added it.
absl::Status Sequential::ShowForward(int i, const LayerArgs& own) const {
  if (i > 0 && layers_[static_cast<size_t>(i) - 1].defers_sum) {
    RETURN_IF_ERROR(watch_->OnTensor(Pass::kForward, first_index_ + i - 1, {own.x}));
  }
  if (layers_[static_cast<size_t>(i)].defers_sum) return absl::OkStatus();
  return watch_->OnTensor(Pass::kForward, first_index_ + i, {own.y});
}

// x is complete: it has included any sum that was left to this layer since the first F. So is y
// after it: the next layer's W may still read it.
absl::Status Sequential::ForwardAgain(int i, const LayerArgs& args, LayerArgs own) const {
  const auto index = static_cast<size_t>(i);
  if (const auto& place = places_[index].second_output; place.has_value()) {
    own.y = {AddressIn(args, *place), type_, spec(i).output.Batched(rows_)};
  }
  own.dx = own.dy = {};
  own.gradients = {};
  own.gradient_stash = nullptr;
  return Call(i, "Forward", [&](Layer& layer) { return layer.Forward(own); });
}

absl::Status Sequential::BackwardInputOf(int i, const LayerArgs& args, const LayerArgs& own,
                                         const Tensor& dx_addend) const {
  const ChainedLayer& chained = layers_[static_cast<size_t>(i)];
  RETURN_IF_ERROR(PassGradients(i, args, own.dy));
  if (chained.recomputes) RETURN_IF_ERROR(ForwardAgain(i, args, own));
  const bool is_plain = i > 0 || dx_addend.empty();
  RETURN_IF_ERROR(CallBackward(
      i, "BackwardInput", LastUse::kBackwardInput, own, [&](Layer& layer, const LayerArgs& given) {
        return is_plain ? layer.BackwardInput(given)
                        : chained.fusion->BackwardInputFused(given, dx_addend);
      }));
  RETURN_IF_ERROR(ShowLoss(i, own));
  return ShowBackward(i, {own.dx});
}

absl::Status Sequential::BackwardWeightOf(int i, const LayerArgs& own) const {
  if (spec(i).is_frozen()) return absl::OkStatus();
  RETURN_IF_ERROR(CallBackward(
      i, "BackwardWeight", LastUse::kBackwardWeight, own,
      [](Layer& layer, const LayerArgs& given) { return layer.BackwardWeight(given); }));
  return ShowBackward(i, own.gradients);
}

absl::Status Sequential::BackwardOf(int i, const LayerArgs& args, const LayerArgs& own,
                                    const Tensor& dx_addend,
                                    const std::optional<TailGradient>& tail,
                                    Tensor& dy_addend) const {
  const ChainedLayer& chained = layers_[static_cast<size_t>(i)];
  if (spec(i).is_frozen()) return BackwardInputOf(i, args, own, dx_addend);
  RETURN_IF_ERROR(PassGradients(i, args, own.dy));
  if (i > 0 && HasRelu(i - 1)) return absl::OkStatus();
  const Tensor added = std::exchange(dy_addend, Tensor{});
  const bool has_relu = HasRelu(i);
  if (has_relu || (tail.has_value() && i + 1 == size())) {
    LayerArgs with_tail = own;
    TailGradient gradient = has_relu ? TailGradient{} : *tail;
    if (has_relu) with_tail.dy = ArgsOf(i + 1, args, true).dy;
    if (!added.empty()) {
      gradient.dy_addend = added;
      gradient.dz = own.dy;  // where it is without the fusion
    }
    RETURN_IF_ERROR(Call(i, "Backward", [&](Layer&) {
      return chained.tail_fusion->BackwardWithTail(with_tail, gradient);
    }));
    RETURN_IF_ERROR(ShowBackward(i, {own.dx}));
    return ShowBackward(i, own.gradients);
  }
  if (chained.recomputes) RETURN_IF_ERROR(ForwardAgain(i, args, own));
  const SumFusion::BackwardSums sums = {.dx_addend = i == 0 ? dx_addend : Tensor{},
                                        .dy_addend = added,
                                        .defers_dx_sum = DefersDxSum(i, args)};
  RETURN_IF_ERROR(CallBackward(
      i, "Backward", LastUse::kBackwardInput, own, [&](Layer& layer, const LayerArgs& given) {
        return sums.empty() ? layer.Backward(given) : chained.fusion->BackwardFused(given, sums);
      }));
  if (sums.defers_dx_sum) dy_addend = chained.fusion->DeferredAddend(own);
  RETURN_IF_ERROR(ShowLoss(i, own));
  RETURN_IF_ERROR(ShowBackward(i, {own.dx}));
  return ShowBackward(i, own.gradients);
}

// The layer before is the one that computes: a ReLU is done by the norm before it, and no pass of F
// or sum of skips comes between.
bool Sequential::DefersDxSum(int i, const LayerArgs& args) const {
  const int first = FirstBackward(args);
  if (i <= first || watch_ != nullptr || use_check_ != nullptr ||
      !layers_[static_cast<size_t>(i)].abilities.defers_dx_sum || StartsSkip(i - 1)) {
    return false;
  }
  const bool is_relu = i > 1 && HasRelu(i - 2);
  const int before = is_relu ? i - 2 : i - 1;
  const ChainedLayer& adds = layers_[static_cast<size_t>(before)];
  if (adds.spec.is_frozen() || adds.recomputes) return false;
  return is_relu ? adds.tail_fusion->adds_to_dy() && before > first : adds.abilities.adds_to_dy;
}

// For a last layer that computes the loss in B, and whose output is stored nowhere: the sum of
// losses is finite if all outputs are.
absl::Status Sequential::ShowLoss(int i, const LayerArgs& own) const {
  if (watch_ == nullptr || own.loss == nullptr || i + 1 < size()) return absl::OkStatus();
  return watch_->OnTensor(Pass::kForward, first_index_ + i, {own.loss->result});
}

absl::Status Sequential::BackwardInput(const LayerArgs& args, const Tensor& dx_addend) const {
  for (int i = size() - 1; i >= FirstBackward(args); --i) {
    RETURN_IF_ERROR(BackwardInputOf(i, args, ArgsOf(i, args, true), dx_addend));
  }
  return absl::OkStatus();
}

absl::Status Sequential::BackwardWeight(const LayerArgs& args, AfterLayer after_layer) const {
  for (int i = size() - 1; i >= 0; --i) {
    RETURN_IF_ERROR(BackwardWeightOf(i, ArgsOf(i, args, true)));
    RETURN_IF_ERROR(after_layer(i));
  }
  return absl::OkStatus();
}

absl::Status Sequential::Backward(const LayerArgs& args, AfterLayer after_layer,
                                  const Tensor& dx_addend,
                                  const std::optional<TailGradient>& tail) const {
  Tensor dy_addend;
  for (int i = size() - 1; i >= 0; --i) {
    if (i >= FirstBackward(args)) {
      RETURN_IF_ERROR(BackwardOf(i, args, ArgsOf(i, args, true), dx_addend, tail, dy_addend));
    }
    RETURN_IF_ERROR(after_layer(i));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
