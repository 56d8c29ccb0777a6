#include "engine/nn/layers/dropout.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/nn/parsing/parsed_layer.h"
#include "kernels/ops/dropout.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

class DropoutLayer final : public Layer {
 public:
  explicit DropoutLayer(float rate) : rate_(rate) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    const int64_t elements = context.input.elements();
    ASSIGN_OR_RETURN(
        op_, context.device.ops().Create(kernels::DropoutShape{context.rows, elements, rate_}));
    copy_ = &context.device.ops().elementwise();
    random_stream_ = context.random_stream;
    LayerSpec spec;
    spec.description = absl::StrCat("dropout ", rate_);
    spec.output = context.input;
    // The mask is recomputed, which is cheaper than reading it.
    spec.memory.input_last_use = LastUse::kForward;
    const auto count = static_cast<double>(context.rows * elements);
    spec.forward = spec.backward_input = {12.0 * count, 2.0 * context.value_bytes() * count};
    return spec;
  }

  absl::Status Forward(const LayerArgs& args) override { return Apply(args, args.x, args.y); }

  absl::Status BackwardInput(const LayerArgs& args) override {
    return args.dx.empty() ? absl::OkStatus() : Apply(args, args.dy, args.dx);
  }

 private:
  absl::Status Apply(const LayerArgs& args, const Tensor& x, const Tensor& y) {
    if (!args.call.is_training) return copy_->Copy(args.stream, x, y);
    const SampleNumbers* const numbers = args.call.numbers;
    return op_->Apply(args.stream,
                      {.seed = args.call.seed,
                       .stream = random_stream_,
                       .first_sample = numbers == nullptr ? nullptr : &numbers->first_sample},
                      x, y);
  }

  const float rate_;
  uint64_t random_stream_ = 0;
  kernels::ElementwiseOps* copy_ = nullptr;
  std::unique_ptr<kernels::DropoutOp> op_;
};

}  // namespace

LayerFactory Dropout(float rate) { return LayerOf<DropoutLayer>(rate); }

const LayerType kDropoutType = {
    .name = "dropout",
    .parse = [](LayerEntry& entry, ParsedLayer& layer) -> absl::Status {
      constexpr double kMaxRate = 0.999;
      ASSIGN_OR_RETURN(const double rate,
                       entry.reader.RequiredDouble("rate", {.min = 0.0, .max = kMaxRate}));
      layer.factories = {Dropout(static_cast<float>(rate))};
      return absl::OkStatus();
    },
};

}  // namespace stagecoach::engine
