#include "engine/nn/reordered_layer.h"

#include <utility>

#include "base/status_macros.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {

using kernels::ImageOrder;
using kernels::TransposeShape;
using partition::AlignTensor;

std::optional<ImageOrder> OrderToTake(const Layer& layer, const LayerContext& context) {
  const Shape& input = context.input;
  const std::optional<Shape>& skip = context.skip;
  ImageOrder takes = ImageOrder::kChannelsFirst;
  switch (layer.takes_images()) {
    case TakesImages::kChannelsFirst:
      break;
    case TakesImages::kInAnyOrder:
      takes = input.image_order();
      break;
    case TakesImages::kAsTheDeviceDoes:
      takes = context.device.image_order();
      break;
  }
  const auto differs = [takes](const Shape& given) {
    return given.rank() == 3 && given.image_order() != takes;
  };
  if (differs(input) || (skip.has_value() && differs(*skip))) return takes;
  return std::nullopt;
}

absl::StatusOr<LayerSpec> ReorderedLayer::Prepare(const LayerContext& context) {
  const auto taken = [this](const Shape& given) {
    return given.rank() == 3 ? given.InOrder(takes_) : given;
  };
  LayerContext own = context;
  own.input = taken(context.input);
  if (context.skip.has_value()) own.skip = taken(*context.skip);
  ASSIGN_OR_RETURN(LayerSpec spec, layer_->Prepare(own));
  const Shape inner_output = spec.output;
  if (inner_output.rank() == 3 && context.output_order.has_value()) {
    spec.output = inner_output.InOrder(*context.output_order);
  }
  ASSIGN_OR_RETURN(x_, Between(context, context.input, own.input));
  ASSIGN_OR_RETURN(y_, Between(context, spec.output, inner_output));
  if (own.skip.has_value()) ASSIGN_OR_RETURN(skip_, Between(context, *context.skip, *own.skip));
  partition::LayerMemory& memory = spec.memory;
  memory.workspace_bytes = AlignTensor(memory.workspace_bytes);
  for (Images* const images : {&x_, &y_, &skip_}) {
    Place(context.rows, context.device.activation_type(), *images, memory.workspace_bytes);
  }
  input_last_use_ = memory.input_last_use;
  output_last_use_ = memory.output_last_use;
  output_gradient_last_use_ = memory.output_gradient_last_use;
  return spec;
}

absl::StatusOr<ReorderedLayer::Images> ReorderedLayer::Between(const LayerContext& context,
                                                               const Shape& outside,
                                                               const Shape& inside) {
  Images images{.inside = inside};
  if (outside == inside) return images;
  const int64_t channels = inside.dim(0), area = inside.dim(1) * inside.dim(2);
  const TransposeShape to_last = {context.rows, channels, area};
  const TransposeShape to_first = {context.rows, area, channels};
  const bool has_last = inside.image_order() == ImageOrder::kChannelsLast;
  ASSIGN_OR_RETURN(images.enter, context.device.ops().Create(has_last ? to_last : to_first));
  ASSIGN_OR_RETURN(images.leave, context.device.ops().Create(has_last ? to_first : to_last));
  return images;
}

void ReorderedLayer::Place(int64_t rows, kernels::DType type, Images& images,
                           int64_t& workspace) const {
  if (images.enter == nullptr) return;
  const int64_t bytes = AlignTensor(Tensor{nullptr, type, images.inside.Batched(rows)}.bytes());
  images.value = std::exchange(workspace, workspace + bytes);
  images.gradient = std::exchange(workspace, workspace + bytes);
}

Tensor ReorderedLayer::Inside(const LayerArgs& args, const Images& images, const Tensor& outside,
                              int64_t offset) {
  if (images.enter == nullptr || outside.empty()) return outside;
  return {args.workspace + offset, outside.dtype, images.inside.Batched(outside.shape.dim(0))};
}

absl::StatusOr<Tensor> ReorderedLayer::Entered(const LayerArgs& args, const Images& images,
                                               const Tensor& outside, int64_t offset) const {
  const Tensor inside = Inside(args, images, outside, offset);
  if (inside.data != outside.data) {
    RETURN_IF_ERROR(images.enter->Apply(args.stream, outside, inside));
  }
  return inside;
}

absl::Status ReorderedLayer::Leave(const LayerArgs& args, const Images& images,
                                   const Tensor& inside, const Tensor& outside) {
  if (inside.data == outside.data) return absl::OkStatus();
  return images.leave->Apply(args.stream, inside, outside);
}

absl::Status ReorderedLayer::Forward(const LayerArgs& args) {
  LayerArgs own = args;
  ASSIGN_OR_RETURN(own.x, Entered(args, x_, args.x, x_.value));
  ASSIGN_OR_RETURN(own.skip, Entered(args, skip_, args.skip, skip_.value));
  own.y = Inside(args, y_, args.y, y_.value);
  RETURN_IF_ERROR(layer_->Forward(own));
  return Leave(args, y_, own.y, args.y);
}

template <typename Call>
absl::Status ReorderedLayer::CallBackward(const LayerArgs& args, LastUse use, Call call) const {
  LayerArgs own = args;
  if (input_last_use_ >= use) ASSIGN_OR_RETURN(own.x, Entered(args, x_, args.x, x_.value));
  if (output_last_use_ >= use) ASSIGN_OR_RETURN(own.y, Entered(args, y_, args.y, y_.value));
  if (output_gradient_last_use_ >= use) {
    ASSIGN_OR_RETURN(own.dy, Entered(args, y_, args.dy, y_.gradient));
  }
  own.dx = Inside(args, x_, args.dx, x_.gradient);
  own.dskip = Inside(args, skip_, args.dskip, skip_.gradient);
  RETURN_IF_ERROR(call(*layer_, own));
  if (use == LastUse::kBackwardWeight) return absl::OkStatus();
  RETURN_IF_ERROR(Leave(args, x_, own.dx, args.dx));
  return Leave(args, skip_, own.dskip, args.dskip);
}

absl::Status ReorderedLayer::BackwardInput(const LayerArgs& args) {
  return CallBackward(args, LastUse::kBackwardInput,
                      [](Layer& layer, const LayerArgs& own) { return layer.BackwardInput(own); });
}

absl::Status ReorderedLayer::BackwardWeight(const LayerArgs& args) {
  return CallBackward(args, LastUse::kBackwardWeight,
                      [](Layer& layer, const LayerArgs& own) { return layer.BackwardWeight(own); });
}

absl::Status ReorderedLayer::Backward(const LayerArgs& args) {
  return CallBackward(args, LastUse::kBackwardInput,
                      [](Layer& layer, const LayerArgs& own) { return layer.Backward(own); });
}

}  // namespace stagecoach::engine
