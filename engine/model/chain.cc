#include "engine/model/chain.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

using partition::AlignTensor;

}  // namespace

absl::StatusOr<Chain> Chain::Prepare(absl::Span<const LayerFactory> factories,
                                     const LayerContext& context, bool splits_backward,
                                     int first_index) {
  STAGECOACH_CHECK(!factories.empty(), "a chain has at least one layer");
  Chain chain;
  chain.rows_ = context.rows;
  chain.type_ = context.device.activation_type();
  chain.splits_backward_ = splits_backward;
  chain.first_parameter_.push_back(0);
  Shape input = context.input;
  for (const LayerFactory& factory : factories) {
    Link link{.layer = factory(), .input = input};
    absl::StatusOr<LayerSpec> spec =
        link.layer->Prepare(LayerContext{context.device, context.rows, input});
    if (!spec.ok()) {
      return base::Annotate(
          spec.status(),
          absl::StrCat("layer ", first_index + static_cast<int>(chain.links_.size())));
    }
    link.spec = *std::move(spec);
    input = link.spec.output;
    chain.first_parameter_.push_back(chain.first_parameter_.back() +
                                     static_cast<int>(link.spec.parameters.size()));
    chain.links_.push_back(std::move(link));
  }
  chain.LayOut(context.rows);
  chain.DeferAdds();
  return chain;
}

void Chain::LayOut(int64_t rows) {
  const auto take = [](int64_t& area_bytes, int64_t bytes) {
    return std::exchange(area_bytes, area_bytes + AlignTensor(bytes));
  };
  // The workspace: two slots for what passes between layers, the layers' scratch, then a fused
  // backward's gradient stash.
  int64_t slot_bytes = 0;
  int64_t scratch_bytes = 0;
  int64_t fused_bytes = 0;
  for (size_t i = 0; i < links_.size(); ++i) {
    Link& link = links_[i];
    link.stash = take(stash_bytes_, link.spec.stash_bytes);
    link.weight_stash = take(weight_stash_bytes_, link.spec.weight_stash_bytes);
    if (splits_backward_) {
      link.gradient_stash = {Area::kGradientStash,
                             take(gradient_stash_bytes_, link.spec.gradient_stash_bytes)};
    } else {
      fused_bytes = std::max(fused_bytes, AlignTensor(link.spec.gradient_stash_bytes));
    }
    scratch_bytes = std::max(scratch_bytes, AlignTensor(link.spec.workspace_bytes));
    if (i + 1 == links_.size()) break;

    const int64_t bytes = AlignTensor(rows * link.spec.output.elements() * SizeOf(type_));
    switch (std::max(link.spec.output_last_use, links_[i + 1].spec.input_last_use)) {
      case LastUse::kForward:
        slot_bytes = std::max(slot_bytes, bytes);
        break;
      case LastUse::kBackwardInput:
        link.output = {Area::kStash, take(stash_bytes_, bytes)};
        break;
      case LastUse::kBackwardWeight:
        link.output = {Area::kWeightStash, take(weight_stash_bytes_, bytes)};
        break;
    }
    if (splits_backward_ && link.spec.output_gradient_last_use == LastUse::kBackwardWeight) {
      link.output_gradient = {Area::kGradientStash, take(gradient_stash_bytes_, bytes)};
    } else {
      slot_bytes = std::max(slot_bytes, bytes);
    }
  }
  // Neighbors alternate between the slots, so that a layer never reads and writes the same one.
  for (size_t i = 0; i < links_.size(); ++i) {
    for (Place* place : {&links_[i].output, &links_[i].output_gradient}) {
      if (place->area == Area::kWorkspace) {
        place->offset = static_cast<int64_t>(i % 2) * slot_bytes;
      }
    }
    if (!splits_backward_) {
      links_[i].gradient_stash = {Area::kWorkspace, 2 * slot_bytes + scratch_bytes};
    }
  }
  scratch_offset_ = 2 * slot_bytes;
  workspace_bytes_ = 2 * slot_bytes + scratch_bytes + fused_bytes;
}

// The sum that ends one layer is left to the next, which reads y anyway, where both can. The last
// layer's never is: what leaves a chain is whole.
void Chain::DeferAdds() {
  for (size_t i = 0; i + 1 < links_.size(); ++i) {
    // The next layer writes its y while it still needs this one's x. Were both in the workspace,
    // they would share a slot.
    const bool x_stays = i == 0 || links_[i - 1].output.area != Area::kWorkspace;
    links_[i].defers_add = links_[i].spec.can_defer_add && links_[i + 1].spec.adds_to_x && x_stays;
  }
}

std::byte* Chain::Address(const LayerArgs& args, const Place& place) {
  switch (place.area) {
    case Area::kStash:
      return args.stash + place.offset;
    case Area::kWeightStash:
      return args.weight_stash + place.offset;
    case Area::kGradientStash:
      return args.gradient_stash + place.offset;
    case Area::kWorkspace:
      return args.workspace + place.offset;
  }
  return nullptr;
}

// The arguments of layer i, given those of the whole chain.
LayerArgs Chain::ArgsOf(int i, const LayerArgs& args, bool backward) const {
  const Link& link = links_[static_cast<size_t>(i)];
  const bool is_first = i == 0;
  const bool is_last = i + 1 == size();
  LayerArgs own{.stream = args.stream};
  const auto tensor = [&](const Place& place, const Shape& sample) {
    return Tensor{Address(args, place), type_, sample.Batched(rows_)};
  };
  const auto x_of = [&](int layer) {
    return layer == 0 ? args.x
                      : tensor(links_[static_cast<size_t>(layer) - 1].output, input(layer));
  };
  own.x = x_of(i);
  own.y = is_last ? args.y : tensor(link.output, link.spec.output);
  if (backward) {
    own.dx =
        is_first ? args.dx : tensor(links_[static_cast<size_t>(i) - 1].output_gradient, link.input);
    if (is_first) own.dx_addend = args.dx_addend;
    own.dy = is_last ? args.dy : tensor(link.output_gradient, link.spec.output);
    own.gradient_stash = Address(args, link.gradient_stash);
  } else {
    if (is_first) own.x_addend = args.x_addend;
    if (!is_first && links_[static_cast<size_t>(i) - 1].defers_add) own.x_addend = x_of(i - 1);
    own.defers_add = link.defers_add;
  }
  const auto begin = static_cast<size_t>(first_parameter(i));
  const size_t count = static_cast<size_t>(first_parameter(i + 1)) - begin;
  own.parameters = args.parameters.subspan(begin, count);
  if (!args.gradients.empty()) own.gradients = args.gradients.subspan(begin, count);
  own.accumulate = args.accumulate;
  own.stash = args.stash + link.stash;
  own.weight_stash = args.weight_stash + link.weight_stash;
  own.workspace = args.workspace + scratch_offset_;
  return own;
}

absl::Status Chain::Forward(const LayerArgs& args) const {
  for (int i = 0; i < size(); ++i) {
    RETURN_IF_ERROR(links_[static_cast<size_t>(i)].layer->Forward(ArgsOf(i, args, false)));
  }
  return absl::OkStatus();
}

absl::Status Chain::BackwardInput(const LayerArgs& args) const {
  for (int i = size() - 1; i >= 0; --i) {
    RETURN_IF_ERROR(links_[static_cast<size_t>(i)].layer->BackwardInput(ArgsOf(i, args, true)));
  }
  return absl::OkStatus();
}

absl::Status Chain::BackwardWeight(const LayerArgs& args, AfterLayer after_layer) const {
  for (int i = size() - 1; i >= 0; --i) {
    RETURN_IF_ERROR(links_[static_cast<size_t>(i)].layer->BackwardWeight(ArgsOf(i, args, true)));
    RETURN_IF_ERROR(after_layer(i));
  }
  return absl::OkStatus();
}

absl::Status Chain::Backward(const LayerArgs& args, AfterLayer after_layer) const {
  for (int i = size() - 1; i >= 0; --i) {
    const LayerArgs own = ArgsOf(i, args, true);
    Layer& layer = *links_[static_cast<size_t>(i)].layer;
    RETURN_IF_ERROR(layer.BackwardInput(own));
    RETURN_IF_ERROR(layer.BackwardWeight(own));
    RETURN_IF_ERROR(after_layer(i));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
