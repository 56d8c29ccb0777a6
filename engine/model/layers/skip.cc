#include "engine/model/layers/skip.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
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
    spec.forward = {elements, 12.0 * elements};
    spec.backward_input = {0.0, 16.0 * elements};
    return spec;
  }

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
    ops_ = &context.device.ops().elementwise();
    LayerSpec spec;
    spec.description = absl::StrCat("concat skip ", context.skip->ToString());
    spec.output = Shape(extents);
    spec.takes_skip = true;
    spec.memory.input_last_use = LastUse::kForward;
    const auto elements = static_cast<double>(context.rows * spec.output.elements());
    spec.forward = spec.backward_input = {0.0, 8.0 * elements};
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override {
    return ForParts(args.x, args.skip, args.y, [&](const Tensor& part, const Tensor& of_y) {
      return ops_->Copy(args.stream, part, of_y);
    });
  }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return ForParts(args.dx, args.dskip, args.dy, [&](const Tensor& part, const Tensor& of_dy) {
      return part.empty() ? absl::OkStatus() : ops_->Copy(args.stream, of_dy, part);
    });
  }

 private:
  // The two parts of every sample of `whole`, and where they are alone.
  template <typename F>
  static absl::Status ForParts(const Tensor& first, const Tensor& second, const Tensor& whole,
                               F&& visit) {
    const int64_t rows = whole.shape.dim(0);
    const int64_t second_elements = second.elements() / rows;
    const int64_t first_elements = whole.elements() / rows - second_elements;
    const auto slice = [](const Tensor& tensor, int64_t begin, int64_t elements) {
      if (tensor.empty()) return Tensor{};
      return Tensor{static_cast<std::byte*>(tensor.data) + begin * SizeOf(tensor.dtype),
                    tensor.dtype, Shape{elements}};
    };
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t at = row * (first_elements + second_elements);
      RETURN_IF_ERROR(visit(slice(first, row * first_elements, first_elements),
                            slice(whole, at, first_elements)));
      RETURN_IF_ERROR(visit(slice(second, row * second_elements, second_elements),
                            slice(whole, at + first_elements, second_elements)));
    }
    return absl::OkStatus();
  }

  kernels::ElementwiseOps* ops_ = nullptr;
};

}  // namespace

LayerFactory AddSkip() { return LayerOf<AddSkipLayer>(); }
LayerFactory ConcatSkip() { return LayerOf<ConcatSkipLayer>(); }

}  // namespace stagecoach::engine
