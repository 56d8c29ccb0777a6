#include "tests/engine/train/runs/grouped_runs.h"

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "engine/data/dataset.h"
#include "engine/nn/layers/activation.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/reference_run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

// The first layer is frozen, and so are parts of others, on their own and inside a block.
constexpr char kFrozen[] =
    "layer 0: *:lr-factor=0,weight-decay=0;layer 2: 1.weight:lr-factor=0,weight-decay=0;"
    "layer 3: weight:lr-factor=0,weight-decay=0;layer 4: gamma:lr-factor=0,weight-decay=0;"
    "layer 4: beta:lr-factor=2,weight-decay=0.25;layer 5: weight:lr-factor=0.5";
constexpr int kGroupedMicroBatches = 8;
constexpr int64_t kGroupedRows = 3;  // of a micro-batch
constexpr int64_t kGroupedBatch = kGroupedMicroBatches * kGroupedRows;

Model GroupedModel(const std::string& rules) {
  Model model = {.input = Shape{kSmallFeatures},
                 .layers = {Linear(16), Activate(Activation::kGelu),
                            Residual({LayerNorm(), Linear(16, Activation::kGelu)}), Linear(16),
                            LayerNorm(), Linear(kSmallClasses)}};
  model.parameter_rules = ParseParameterRules(rules).value();
  return model;
}

// Returns rules that say "frozen" rather than a learning rate of 0.
std::string Frozen() {
  return absl::StrReplaceAll(kFrozen, {{"lr-factor=0,weight-decay=0;", "frozen;"}});
}

struct GroupedRun {
  int devices = 1;
  std::string schedule = "gpipe";
  partition::Replication replication = {.gradient_blocks = 2};
};

struct GroupedAnswer {
  std::vector<double> losses;
  std::map<std::string, std::vector<float>> parameters;
  std::set<std::string> frozen;

  friend bool operator==(const GroupedAnswer&, const GroupedAnswer&) = default;
};

GroupedAnswer Train(const GroupedRun& run, const std::string& rules,
                    const TrainerOptions& options) {
  const Model model = GroupedModel(rules);
  const auto trainer = MakeTrainer(model,
                                   EvenPlan(model, run.devices, run.schedule, kGroupedMicroBatches,
                                            kGroupedRows, 0, run.replication),
                                   options);
  const auto data = SmallData(2 * kGroupedBatch);
  GroupedAnswer answer;
  std::map<std::string, std::vector<float>> began;
  for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
    if (!parameter.update.is_frozen()) continue;
    began[parameter.name] = trainer->Parameter(parameter.name).value();
    answer.frozen.insert(parameter.name);
  }
  for (int step = 0; step < 3; ++step) {
    answer.losses.push_back(
        trainer->Step(*data, Rows(step % 2 * kGroupedBatch, kGroupedBatch)).value().loss);
  }
  for (const ModelParameter& parameter : trainer->run().profile.parameters.all()) {
    answer.parameters[parameter.name] = trainer->Parameter(parameter.name).value();
    if (!began.contains(parameter.name)) continue;
    EXPECT_EQ(answer.parameters[parameter.name], began[parameter.name]) << parameter.name;
  }
  const std::vector<DeviceReport> devices = trainer->Devices().value();
  for (const DeviceReport& device : devices) {
    EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes);
  }
  return answer;
}

// Frozen parameters are stored as layers read them, which may be rounded.
void ExpectToTrainAlike(const GroupedAnswer& actual, const GroupedAnswer& expected) {
  EXPECT_EQ(actual.losses, expected.losses);
  for (const auto& [name, values] : expected.parameters) {
    if (expected.frozen.contains(name)) continue;
    EXPECT_EQ(actual.parameters.at(name), values) << name;
  }
}

}  // namespace

void ExpectGroupsToMatchPyTorch(const DeviceSpec& device) {
  Model model = {.input = Shape{5},
                 .layers = {Linear(7, Activation::kGelu), LayerNorm(), Linear(3)}};
  model.parameter_rules = ParseParameterRules(
                              "*bias:lr-factor=2;layer 1: *:weight-decay=0.5;"
                              "layer 2: weight:lr-factor=0.25;layer 0: weight:frozen")
                              .value();
  for (const Optimizer& kind : {Optimizer::AdamW(), Optimizer::Sgd()}) {
    const bool is_adam = kind.kind == Optimizer::Kind::kAdamW;
    SCOPED_TRACE(is_adam ? "AdamW" : "SGD");
    const ReferenceRun reference(is_adam ? "parameter_groups/adamw" : "parameter_groups/sgd");
    const auto& x = reference["x"].values;
    const auto& labels = reference["labels"].values;
    const auto data = TableDataset::Create(Shape{5}, 3, std::vector<float>(x.begin(), x.end()),
                                           std::vector<int32_t>(labels.begin(), labels.end()))
                          .value();
    Optimizer optimizer = kind;
    optimizer.weight_decay = 0.3F;
    ExpectToMatch(
        reference, model, EvenPlan(model, 2, "1f1b", /*micro_batches=*/2, 4), *data,
        {.optimizer = optimizer, .learning_rate = LearningRate::Constant(0.05F), .device = device},
        {.values = 1e-5, .gradients = 1e-5});
  }
}

void ExpectGroupsToHaveTheSameBitsEverywhere(const DeviceSpec& device, int devices) {
  std::vector<GroupedRun> runs = {{2, "1f1b"}, {1, "gpipe", {2, 2, /*shards_optimizer=*/true}}};
  if (devices > 2) runs.push_back({3, "zb-h1"});
  if (devices > 3) runs.push_back({2, "zb-v", {2, 2, /*shards_optimizer=*/true}});
  Optimizer clipping = Optimizer::Sgd();
  clipping.clip_norm = 0.05F;
  for (const Optimizer& optimizer : {Optimizer::AdamW(), clipping}) {
    SCOPED_TRACE(TypeOf(optimizer).name);
    const TrainerOptions options = {
        .optimizer = optimizer, .learning_rate = LearningRate::Constant(0.02F), .device = device};
    const GroupedAnswer expected = Train({}, Frozen(), options);
    // With clipping, the norm has the gradients of all that are not frozen.
    if (!optimizer.waits_for_norm()) ExpectToTrainAlike(Train({}, kFrozen, options), expected);
    for (const GroupedRun& run : runs) {
      EXPECT_EQ(Train(run, Frozen(), options), expected)
          << run.devices << " devices, " << run.schedule << ", " << run.replication.replicas
          << " replicas";
    }
  }
}

}  // namespace stagecoach::engine
