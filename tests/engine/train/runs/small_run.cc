#include "tests/engine/train/runs/small_run.h"

#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/data/formats/synthetic.h"
#include "engine/nn/layers/activation.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "kernels/ops/ops.h"
#include "partition/search/balance_stages.h"

namespace stagecoach::engine {
namespace {

using schedule::Op;

class ProbeLayer final : public Layer {
 public:
  explicit ProbeLayer(const ProbeHooks* hooks) : hooks_(*hooks) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    if (hooks_.on_prepare) hooks_.on_prepare(context.device);
    elementwise_ = &context.device.ops().elementwise();
    LayerSpec spec;
    spec.description = "probe";
    spec.output = context.input;
    spec.memory.input_last_use = LastUse::kForward;
    return spec;
  }
  absl::Status Forward(const LayerArgs& args) override {
    RETURN_IF_ERROR(Before(Op::kForward, forward_calls_));
    return elementwise_->Copy(args.stream, args.x, args.y);
  }
  absl::Status BackwardInput(const LayerArgs& args) override {
    RETURN_IF_ERROR(Before(Op::kBackwardInput, backward_calls_));
    return args.dx.empty() ? absl::OkStatus() : elementwise_->Copy(args.stream, args.dy, args.dx);
  }

 private:
  absl::Status Before(Op op, int& calls) {
    return hooks_.before ? hooks_.before(op, calls++) : absl::OkStatus();
  }

  const ProbeHooks& hooks_;
  kernels::ElementwiseOps* elementwise_ = nullptr;
  int forward_calls_ = 0, backward_calls_ = 0;
};

class OneMislabeled final : public Dataset {
 public:
  OneMislabeled(std::shared_ptr<const Dataset> samples, int64_t row, int32_t label)
      : Dataset(samples->spec()), samples_(std::move(samples)), row_(row), label_(label) {}

  int64_t rows() const override { return samples_->rows(); }

 private:
  void ReadInput(int i, int64_t row, std::byte* out) const override {
    const int64_t bytes = spec().inputs[static_cast<size_t>(i)].bytes();
    samples_->CopyInput(i, row, absl::MakeSpan(out, static_cast<size_t>(bytes)));
  }
  void ReadTarget(int64_t row, std::byte* out) const override {
    const int32_t label = row == row_ ? label_ : samples_->label(row);
    std::memcpy(out, &label, sizeof(label));
  }

  const std::shared_ptr<const Dataset> samples_;
  const int64_t row_;
  const int32_t label_;
};

}  // namespace

Model SmallModel() {
  return {.input = Shape{kSmallFeatures},
          .layers = {
              Linear(600, Activation::kGelu), Linear(24, Activation::kRelu),
              Residual({LayerNorm(), Linear(24, Activation::kGelu)}), LayerNorm(),
              Residual({LayerNorm(), Linear(24, Activation::kRelu)}), Linear(30, Activation::kGelu),
              Residual({Residual({LayerNorm(), Linear(30)}), Linear(30)}), Linear(kSmallClasses)}};
}

Model SmallNumbersModel() {
  Model model = SmallModel();
  model.layers.back() = Linear(6, Activation::kSigmoid);
  model.layers.push_back(Tanh());
  model.layers.push_back(Linear(1));
  model.loss = MeanSquaredErrorOfValues();
  return model;
}

partition::Plan EvenPlan(const Model& model, int devices, const std::string& schedule,
                         int micro_batches, int64_t micro_batch_rows, int chunks,
                         const partition::Replication& replication) {
  const auto made =
      partition::GeneratedSchedule(schedule, micro_batches / replication.replicas, chunks)(devices);
  STAGECOACH_CHECK_OK(made);
  partition::Plan plan{.num_layers = model.num_layers(),
                       .micro_batch_rows = micro_batch_rows,
                       .schedule = *made,
                       .replication = replication};
  const int stages = made->num_stages();
  for (int stage = 0; stage < stages; ++stage) {
    plan.first_layer.push_back(stage * model.num_layers() / stages);
  }
  return plan;
}

std::shared_ptr<const Dataset> SmallData(int64_t rows) {
  auto data = MakeSynthetic({rows, kSmallFeatures, kSmallClasses}, /*seed=*/7);
  STAGECOACH_CHECK_OK(data);
  return data->train;
}

std::shared_ptr<const Dataset> Mislabeled(std::shared_ptr<const Dataset> samples, int64_t row,
                                          int32_t label) {
  return std::make_shared<const OneMislabeled>(std::move(samples), row, label);
}

std::shared_ptr<const Dataset> SmallNumbers(int64_t rows) {
  const auto data = SmallData(rows);
  std::vector<float> values, numbers;
  for (int64_t row = 0; row < data->rows(); ++row) {
    std::vector<float> features(kSmallFeatures);
    data->CopyNumbers(0, row, absl::MakeSpan(features));
    values.insert(values.end(), features.begin(), features.end());
    numbers.push_back(0.8F * features[0] - 0.6F * features[1]);
  }
  auto samples = TableDataset::Create({kSmallFeatures}, 0, std::move(values), {});
  STAGECOACH_CHECK_OK(samples);
  auto labeled = LabeledByNumbers(*std::move(samples), std::move(numbers));
  STAGECOACH_CHECK_OK(labeled);
  return *std::move(labeled);
}

std::vector<int64_t> Rows(int64_t first, int64_t count) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

std::unique_ptr<Trainer> MakeTrainer(const Model& model, const partition::Plan& plan,
                                     const TrainerOptions& options) {
  auto trainer = Trainer::Create(model, plan, options);
  STAGECOACH_CHECK_OK(trainer);
  return *std::move(trainer);
}

LayerFactory Probe(const ProbeHooks* hooks) { return LayerOf<ProbeLayer>(hooks); }

}  // namespace stagecoach::engine
