#include "engine/nn/layers/skip.h"

#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/concat.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

absl::Status NoSkip(const char* name) {
  return absl::InvalidArgumentError(
      absl::StrCat(name, ": takes the output of an earlier layer, but no skip ends here"));
}

class AddSkipLayer final : public Layer {
 public:
  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (!context.skip.has_value()) return NoSkip("add skip");
    if (*context.skip != context.input) {
      return absl::InvalidArgumentError(
          absl::StrCat("add skip: is given ", context.input.ToString(), " and the skip ",
                       context.skip->ToString(), "; the shapes must be equal"));
    }
    ops_ = &context.device.ops().elementwise();
    LayerSpec spec;
    spec.description = "add skip";
    spec.output = context.input;
    spec.takes_skip = true;
    spec.memory.input_last_use = LastUse::kForward;
    const auto elements = static_cast<double>(context.rows * context.input.elements());
    const double w = context.value_bytes();
    spec.forward = {elements, 3.0 * w * elements};
    spec.backward_input = {0.0, 4.0 * w * elements};
    return spec;
  }

  TakesImages takes_images() const override { return TakesImages::kInAnyOrder; }

  absl::Status Forward(const LayerArgs& args) override {
    return ops_->Add(args.stream, args.x, args.skip, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    RETURN_IF_ERROR(ops_->Copy(args.stream, args.dy, args.dskip));
    return args.dx.empty() ? absl::OkStatus() : ops_->Copy(args.stream, args.dy, args.dx);
  }

 private:
  kernels::ElementwiseOps* ops_ = nullptr;
};

std::vector<int64_t> ExtentsOf(const Shape& shape) {
  std::vector<int64_t> extents;
  for (int i = 0; i < shape.rank(); ++i) extents.push_back(shape.dim(i));
  return extents;
}

class ConcatSkipLayer final : public Layer {
 public:
  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (!context.skip.has_value()) return NoSkip("concat skip");
    std::vector<int64_t> extents = ExtentsOf(context.input), other = ExtentsOf(*context.skip);
    const bool have_axis = !extents.empty() && !other.empty();
    const int64_t together = have_axis ? extents.front() + other.front() : 0;
    if (have_axis) extents.front() = other.front() = together;
    if (!have_axis || extents != other) {
      return absl::InvalidArgumentError(
          absl::StrCat("concat skip: is given ", context.input.ToString(), " and the skip ",
                       context.skip->ToString(), "; all axes but the first must be equal"));
    }
    // The unit that is contiguous in memory: a sample, or its channels at one place.
    const bool is_last = context.input.image_order() == kernels::ImageOrder::kChannelsLast;
    const int64_t places = is_last ? context.input.elements() / context.input.dim(0) : 1;
    ASSIGN_OR_RETURN(op_, context.device.ops().Create(kernels::ConcatShape{
                              context.rows * places, context.input.elements() / places,
                              context.skip->elements() / places}));
    LayerSpec spec;
    spec.description = absl::StrCat("concat skip ", context.skip->ToString());
    spec.output = Shape(extents).InOrder(context.input.image_order());
    spec.takes_skip = true;
    spec.memory.input_last_use = LastUse::kForward;
    const auto elements = static_cast<double>(context.rows * spec.output.elements());
    spec.forward = spec.backward_input = {0.0, 2.0 * context.value_bytes() * elements};
    return spec;
  }

  TakesImages takes_images() const override { return TakesImages::kInAnyOrder; }

  absl::Status Forward(const LayerArgs& args) override {
    return op_->Join(args.stream, args.x, args.skip, args.y);
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return op_->Split(args.stream, args.dy, args.dx, args.dskip);
  }

 private:
  std::unique_ptr<kernels::ConcatOp> op_;
};

}  // namespace

LayerFactory AddSkip() { return LayerOf<AddSkipLayer>(); }
LayerFactory ConcatSkip() { return LayerOf<ConcatSkipLayer>(); }

const LayerType kAddSkipType = {
    .name = "add_skip",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      ASSIGN_OR_RETURN(layer.from, ParseName("from", entry.reader));
      layer.factories = {AddSkip()};
      return absl::OkStatus();
    },
};

const LayerType kConcatSkipType = {
    .name = "concat_skip",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      ASSIGN_OR_RETURN(layer.from, ParseName("from", entry.reader));
      layer.factories = {ConcatSkip()};
      layer.concatenates = true;
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
