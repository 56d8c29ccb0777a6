#include "tests/engine/train/runs/ema_runs.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/data/dataset.h"
#include "engine/nn/layers/activation.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/reference_run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

constexpr int kEmaMicroBatches = 8;
constexpr int64_t kEmaRows = 3;  // of a micro-batch
constexpr int64_t kEmaBatch = kEmaMicroBatches * kEmaRows;
constexpr float kEmaDecay = 0.4F;  // that of the fifth step and all later ones
constexpr int kEmaSteps = 8;

// One parameter is frozen.
Model AveragedModel() {
  Model model = {.input = Shape{kSmallFeatures},
                 .layers = {Linear(16), Activate(Activation::kGelu),
                            Residual({LayerNorm(), Linear(16, Activation::kGelu)}), Linear(16),
                            LayerNorm(), Linear(kSmallClasses)}};
  model.parameter_rules = ParseParameterRules("layer 3: bias:frozen").value();
  return model;
}

struct EmaRun {
  int devices = 1;
  std::string schedule = "gpipe";
  partition::Replication replication = {.gradient_blocks = 2};
};

std::unique_ptr<Trainer> TrainerOf(const EmaRun& run, const Optimizer& optimizer,
                                   const DeviceSpec& device) {
  const Model model = AveragedModel();
  return MakeTrainer(
      model,
      EvenPlan(model, run.devices, run.schedule, kEmaMicroBatches, kEmaRows, 0, run.replication),
      {.optimizer = optimizer, .learning_rate = LearningRate::Constant(0.02F), .device = device});
}

double TakeStep(Trainer& trainer, int step) {
  return trainer.Step(*SmallData(2 * kEmaBatch), Rows(step % 2 * kEmaBatch, kEmaBatch))
      .value()
      .loss;
}

// The second batch is not whole.
double EvaluationLossOf(Trainer& trainer) {
  return trainer.Evaluate(*SmallData(kEmaBatch + 5)).value().loss;
}

struct EmaAnswer {
  std::vector<double> losses, evaluation_losses;
  std::string hash;
  ParameterValues averages;

  friend bool operator==(const EmaAnswer&, const EmaAnswer&) = default;
};

EmaAnswer AnswerOf(const EmaRun& run, const Optimizer& optimizer, const DeviceSpec& device) {
  const auto trainer = TrainerOf(run, optimizer, device);
  EmaAnswer answer;
  for (int step = 0; step < 3; ++step) {
    answer.evaluation_losses.push_back(EvaluationLossOf(*trainer));
    answer.losses.push_back(TakeStep(*trainer, step));
  }
  answer.evaluation_losses.push_back(EvaluationLossOf(*trainer));
  answer.hash = trainer->ParametersHash().value();  // DataLoss if replicas differed
  answer.averages = AveragesOf(*trainer);
  const std::vector<DeviceReport> devices = trainer->Devices().value();
  for (const DeviceReport& report : devices) {
    EXPECT_EQ(report.measured_peak_bytes, report.predicted_peak_bytes);
    EXPECT_EQ(report.measured_sent, report.predicted_sent);
  }
  return answer;
}

// Moves averages in double precision towards the values after a step, which counts from 1.
void Follow(const ParameterValues& values, int step,
            std::map<std::string, std::vector<double>>& averages) {
  const double decay = std::min(static_cast<double>(kEmaDecay), (1.0 + step) / (10.0 + step));
  for (const auto& [name, own] : values) {
    for (size_t i = 0; i < own.size(); ++i) {
      double& average = averages[name][i];
      average = decay * average + (1.0 - decay) * own[i];
    }
  }
}

void ExpectAreClose(const ParameterValues& actual,
                    const std::map<std::string, std::vector<double>>& expected) {
  constexpr double kTolerance = 4.0 * kEmaSteps * 0x1p-24;  // four roundings per step
  ASSERT_EQ(actual.size(), expected.size());
  for (const auto& [name, values] : expected) {
    double largest = 0.0, error = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::fabs(values[i]));
      error = std::max(error, std::fabs(values[i] - actual.at(name)[i]));
    }
    EXPECT_LE(error, kTolerance * std::max(largest, 1.0)) << name;
  }
}

}  // namespace

ParameterValues ValuesOf(Trainer& trainer) {
  ParameterValues values;
  for (const ModelParameter& parameter : trainer.run().profile.parameters.all()) {
    values[parameter.name] = trainer.Parameter(parameter.name).value();
  }
  return values;
}

ParameterValues AveragesOf(Trainer& trainer) {
  ParameterValues averages;
  EXPECT_OK(trainer.WithAverages([&] {
    averages = ValuesOf(trainer);
    return absl::OkStatus();
  }));
  return averages;
}

void ExpectAveragesToFollowTheirFormula(const DeviceSpec& device) {
  for (Optimizer optimizer : {Optimizer::AdamW(), Optimizer::Sgd()}) {
    SCOPED_TRACE(TypeOf(optimizer).name);
    const auto plain = TrainerOf({}, optimizer, device);
    const auto judge = TrainerOf({}, optimizer, device);
    optimizer.ema_decay = kEmaDecay;
    const auto trainer = TrainerOf({}, optimizer, device);
    std::map<std::string, std::vector<double>> expected;
    const ParameterValues initial = ValuesOf(*trainer);
    for (const auto& [name, values] : initial) expected[name] = {values.begin(), values.end()};
    EXPECT_EQ(AveragesOf(*trainer), initial);
    for (int step = 0; step < kEmaSteps; ++step) {
      EXPECT_EQ(TakeStep(*trainer, step), TakeStep(*plain, step));
      const ParameterValues values = ValuesOf(*trainer);
      Follow(values, step + 1, expected);
      const ParameterValues averages = AveragesOf(*trainer);
      ExpectAreClose(averages, expected);
      EXPECT_EQ(ValuesOf(*trainer), values);
      for (const auto& [name, average] : averages) EXPECT_OK(judge->SetParameter(name, average));
      EXPECT_EQ(EvaluationLossOf(*trainer), EvaluationLossOf(*judge));
    }
    EXPECT_NE(EvaluationLossOf(*trainer), EvaluationLossOf(*plain));
    EXPECT_EQ(trainer->ParametersHash().value(), plain->ParametersHash().value());
  }
}

void ExpectAveragesToMatchPyTorch(const DeviceSpec& device) {
  const Model model = {.input = Shape{5},
                       .layers = {Linear(7, Activation::kGelu), LayerNorm(), Linear(3)}};
  const ReferenceRun reference("ema");
  ASSERT_EQ(reference.With("average/").size(), 6);
  const auto& x = reference["x"].values;
  const auto& labels = reference["labels"].values;
  const auto data = TableDataset::Create(Shape{5}, 3, std::vector<float>(x.begin(), x.end()),
                                         std::vector<int32_t>(labels.begin(), labels.end()))
                        .value();
  Optimizer optimizer = Optimizer::Sgd();
  optimizer.ema_decay = kEmaDecay;
  ExpectToMatch(
      reference, model, EvenPlan(model, 2, "1f1b", /*micro_batches=*/2, 4), *data,
      {.optimizer = optimizer, .learning_rate = LearningRate::Constant(0.1F), .device = device},
      {.values = 1e-5, .gradients = 1e-5});
}

void ExpectAveragesToHaveTheSameBitsEverywhere(const DeviceSpec& device, int devices) {
  std::vector<EmaRun> runs = {{2, "1f1b"}, {1, "gpipe", {2, 2, /*shards_optimizer=*/true}}};
  if (devices > 2) runs.push_back({3, "zb-h1"});
  if (devices > 3) {
    runs.push_back({2, "zb-v", {2, 2, /*shards_optimizer=*/true}});
    runs.push_back({2, "1f1b", {2, 2}});
  }
  Optimizer adam = Optimizer::AdamW();
  adam.ema_decay = kEmaDecay;
  Optimizer clipping = Optimizer::Sgd();
  clipping.clip_norm = 0.05F;
  clipping.ema_decay = kEmaDecay;
  for (const Optimizer& optimizer : {adam, clipping}) {
    SCOPED_TRACE(TypeOf(optimizer).name);
    const EmaAnswer expected = AnswerOf({}, optimizer, device);
    for (const EmaRun& run : runs) {
      EXPECT_EQ(AnswerOf(run, optimizer, device), expected)
          << run.devices << " devices, " << run.schedule << ", " << run.replication.replicas
          << " replicas";
    }
  }
}

}  // namespace stagecoach::engine
