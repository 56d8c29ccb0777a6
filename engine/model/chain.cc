#include "engine/model/chain.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using partition::Place;

std::byte* AddressIn(const LayerArgs& args, const Place& place) {
  switch (place.area) {
    case Place::Area::kStash:
      return args.stash + place.offset;
    case Place::Area::kWeightStash:
      return args.weight_stash + place.offset;
    case Place::Area::kGradientStash:
      return args.gradient_stash + place.offset;
    case Place::Area::kWorkspace:
      return args.workspace + place.offset;
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<Chain> Chain::Prepare(absl::Span<const LayerFactory> factories,
                                     const LayerContext& context, int first_index) {
  STAGECOACH_CHECK(!factories.empty(), "a chain has at least one layer");
  Chain chain;
  chain.rows_ = context.rows;
  chain.type_ = context.device.activation_type();
  chain.first_parameter_.push_back(0);
  LayerContext next = context;
  for (const LayerFactory& factory : factories) {
    const int index = first_index + static_cast<int>(chain.layers_.size());
    next.random_stream = StreamOfLayer(context.random_stream, index);
    ChainedLayer chained{.layer = factory(), .input = next.input};
    absl::StatusOr<LayerSpec> spec = PrepareLayer(*chained.layer, next);
    if (!spec.ok()) {
      return base::Annotate(spec.status(), absl::StrCat("layer ", index));
    }
    chained.spec = *std::move(spec);
    chained.fusion = dynamic_cast<SumFusion*>(chained.layer.get());
    if (chained.fusion != nullptr) chained.abilities = chained.fusion->abilities();
    next.input = chained.spec.output;
    next.vocabulary = 0;
    chain.first_parameter_.push_back(chain.first_parameter_.back() +
                                     static_cast<int>(chained.spec.parameters.size()));
    chain.layers_.push_back(std::move(chained));
  }
  return chain;
}

void Chain::LayOut(const partition::StagePosition& position, const partition::EndMemory& ends) {
  std::vector<partition::LayerMemory> layers;
  for (const ChainedLayer& chained : layers_) layers.push_back(chained.spec.memory);
  memory_ = LayOutStage(layers, ends, position, &places_);
  DeferSums();
}

// The sum that ends one layer is left to the next, which reads y anyway, where both can. The last
// layer's never is: what leaves a chain is whole.
void Chain::DeferSums() {
  for (size_t i = 0; i + 1 < layers_.size(); ++i) {
    // The next layer writes its y while it still needs this one's x. Were both in the workspace,
    // they would share a slot.
    const bool x_stays = i == 0 || places_[i - 1].output.area != Place::Area::kWorkspace;
    layers_[i].defers_sum =
        layers_[i].abilities.defers_sum && layers_[i + 1].abilities.adds_to_x && x_stays;
  }
}

Tensor Chain::XOf(int i, const LayerArgs& args) const {
  if (i == 0) return args.x;
  return {AddressIn(args, places_[static_cast<size_t>(i) - 1].output), type_,
          input(i).Batched(rows_)};
}

// The arguments of layer i, given those of the whole chain.
LayerArgs Chain::ArgsOf(int i, const LayerArgs& args, bool backward) const {
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
    if (i > 0) {
      own.dx = {AddressIn(args, places_[index - 1].output_gradient), type_,
                input(i).Batched(rows_)};
    }
    if (!is_last) own.dy = output(places.output_gradient);
    own.gradient_stash = AddressIn(args, places.gradient_stash);
  } else {
    own.dx = own.dy = {};
    own.gradient_stash = nullptr;
  }
  const auto begin = static_cast<size_t>(first_parameter(i));
  const size_t count = static_cast<size_t>(first_parameter(i + 1)) - begin;
  own.parameters = args.parameters.subspan(begin, count);
  if (!args.gradients.empty()) own.gradients = args.gradients.subspan(begin, count);
  own.stash = AddressIn(args, places.stash);
  own.weight_stash = AddressIn(args, places.weight_stash);
  own.workspace = AddressIn(args, places.workspace);
  return own;
}

absl::Status Chain::Forward(const LayerArgs& args, const Tensor& x_addend) const {
  for (int i = 0; i < size(); ++i) {
    const ChainedLayer& chained = layers_[static_cast<size_t>(i)];
    const LayerArgs own = ArgsOf(i, args, false);
    Tensor addend = x_addend;
    if (i > 0) {
      addend = layers_[static_cast<size_t>(i) - 1].defers_sum ? XOf(i - 1, args) : Tensor{};
    }
    if (addend.empty() && !chained.defers_sum) {
      RETURN_IF_ERROR(chained.layer->Forward(own));
    } else {
      RETURN_IF_ERROR(chained.fusion->ForwardFused(own, addend, chained.defers_sum));
    }
  }
  return absl::OkStatus();
}

absl::Status Chain::BackwardInputOf(int i, const LayerArgs& own, const Tensor& dx_addend) const {
  const ChainedLayer& chained = layers_[static_cast<size_t>(i)];
  if (i > 0 || dx_addend.empty()) return chained.layer->BackwardInput(own);
  return chained.fusion->BackwardInputFused(own, dx_addend);
}

absl::Status Chain::BackwardInput(const LayerArgs& args, const Tensor& dx_addend) const {
  for (int i = size() - 1; i >= 0; --i) {
    RETURN_IF_ERROR(BackwardInputOf(i, ArgsOf(i, args, true), dx_addend));
  }
  return absl::OkStatus();
}

absl::Status Chain::BackwardWeight(const LayerArgs& args, AfterLayer after_layer) const {
  for (int i = size() - 1; i >= 0; --i) {
    RETURN_IF_ERROR(layers_[static_cast<size_t>(i)].layer->BackwardWeight(ArgsOf(i, args, true)));
    RETURN_IF_ERROR(after_layer(i));
  }
  return absl::OkStatus();
}

absl::Status Chain::Backward(const LayerArgs& args, AfterLayer after_layer) const {
  for (int i = size() - 1; i >= 0; --i) {
    const LayerArgs own = ArgsOf(i, args, true);
    RETURN_IF_ERROR(BackwardInputOf(i, own, {}));
    RETURN_IF_ERROR(layers_[static_cast<size_t>(i)].layer->BackwardWeight(own));
    RETURN_IF_ERROR(after_layer(i));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
