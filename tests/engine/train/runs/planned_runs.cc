#include "tests/engine/train/runs/planned_runs.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/nn/layers/skip.h"
#include "engine/runtime/rank_group.h"
#include "engine/runtime/stage/profile.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/search/planner.h"
#include "schedule/generators/generators.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using partition::FindPlan;
using partition::PlanEvaluation;
using partition::PlannerRequest;

constexpr int64_t kPlannedBatch = 12;

Model RandomModel(std::mt19937& random) {
  Model model = {.input = Shape{kSmallFeatures}, .layers = {}};
  int64_t width = 8 + static_cast<int64_t>(random() % 40);
  const int layers = 4 + static_cast<int>(random() % 6);
  model.layers.push_back(Linear(width, Activation::kRelu));
  std::vector<int64_t> widths = {width};
  while (static_cast<int>(model.layers.size()) + 1 < layers) {
    switch (random() % 5) {
      case 0:
        width = 8 + static_cast<int64_t>(random() % 90);
        model.layers.push_back(Linear(width, Activation::kGelu));
        break;
      case 1:
        model.layers.push_back(LayerNorm());
        break;
      case 2:
        model.layers.push_back(Linear(width));
        break;
      case 3: {
        const size_t from = random() % widths.size();
        if (from + 1 == widths.size()) continue;
        model.skips.push_back({static_cast<int>(from), model.num_layers()});
        model.layers.push_back(ConcatSkip());
        width += widths[from];
        break;
      }
      default:
        model.layers.push_back(Residual({LayerNorm(), Linear(width, Activation::kGelu)}));
    }
    widths.push_back(width);
  }
  model.layers.push_back(Linear(kSmallClasses));
  return model;
}

PlannerRequest RandomRequest(const Model& model, const TrainerOptions& options,
                             std::mt19937& random) {
  PlannerRequest request;
  std::vector<int64_t> sizes;
  for (const int64_t rows : {2, 3, 4, 6}) {
    if (random() % 2 == 0 || rows == 6) sizes.push_back(rows);
  }
  request.profile = AnalyzeProfile(model, "random", sizes,
                                   {.optimizer = options.optimizer, .device = options.device})
                        .value();
  const int devices = 1 + static_cast<int>(random() % 4);
  request.cluster = partition::UniformCluster(devices);
  request.cluster.transfers =
      TransfersOf({.ranks = devices, .device = options.device, .exchange = options.exchange});
  request.batch_rows = kPlannedBatch;
  const auto generators = schedule::Generators();
  const size_t choice = random() % (generators.size() + 3);
  if (choice < generators.size()) request.schedule = std::string(generators[choice].name);
  return request;
}

int64_t LargestPeak(const PlanEvaluation& evaluation) {
  int64_t peak_bytes = 0;
  for (const partition::RankReport& rank : evaluation.compiled.ranks) {
    peak_bytes = std::max(peak_bytes, rank.peak_bytes());
  }
  return peak_bytes;
}

// Trains a step under a budget of `budget_bytes` for every device, and compares the memory that
// they took.
void ExpectToRunWithin(int64_t budget_bytes, const Model& model, const PlanEvaluation& evaluation,
                       TrainerOptions options) {
  options.device.memory_bytes = budget_bytes;
  auto trainer = Trainer::Create(model, evaluation.plan(), options);
  ASSERT_OK(trainer);
  const auto data = SmallData(kPlannedBatch);
  ASSERT_OK((*trainer)->Step(*data, Rows(0, kPlannedBatch)));
  ASSERT_OK((*trainer)->Evaluate(*data));
  const std::vector<DeviceReport> devices = (*trainer)->Devices().value();
  ASSERT_EQ(devices.size(), evaluation.compiled.ranks.size());
  for (size_t rank = 0; rank < devices.size(); ++rank) {
    EXPECT_EQ(devices[rank].measured_peak_bytes, evaluation.compiled.ranks[rank].peak_bytes());
  }
}

}  // namespace

PlannedRuns ExpectPlansToRun(unsigned seed, int trials, TrainerOptions options) {
  std::mt19937 random(seed);
  PlannedRuns runs;
  for (int trial = 0; trial < trials; ++trial) {
    SCOPED_TRACE(trial);
    const Model model = RandomModel(random);
    options.optimizer = random() % 2 == 0 ? Optimizer::AdamW() : Optimizer::Sgd();
    if (trial % 2 == 0) options.optimizer.clip_norm = 0.05F;
    PlannerRequest request = RandomRequest(model, options, random);
    const absl::StatusOr<PlanEvaluation> free = FindPlan(request);
    if (!free.ok()) continue;  // too few layers, or a shape that the schedule refuses
    ++runs.planned;
    ExpectToRunWithin(LargestPeak(*free), model, *free, options);
    // The budget starts at what that plan takes and shrinks until nothing fits.
    for (int64_t budget_bytes = LargestPeak(*free); true;) {
      for (auto& device : request.cluster.devices) device.memory_bytes = budget_bytes;
      const absl::StatusOr<PlanEvaluation> tight = FindPlan(request);
      if (!tight.ok()) {
        EXPECT_THAT(tight, testing::StatusIs(absl::StatusCode::kResourceExhausted));
        break;
      }
      if (LargestPeak(*tight) > budget_bytes) {
        ADD_FAILURE() << LargestPeak(*tight) << " bytes are planned of " << budget_bytes;
        break;
      }
      ExpectToRunWithin(budget_bytes, model, *tight, options);
      ++runs.tightened;
      if (!tight->plan().recomputed.empty()) ++runs.recomputing;
      budget_bytes = LargestPeak(*tight) - 1;
    }
  }
  return runs;
}

}  // namespace stagecoach::engine
