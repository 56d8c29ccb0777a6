#include "partition/cost/stage_memory.h"

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "engine/runtime/stage/profile.h"
#include "engine/runtime/stage/stage.h"
#include "gtest/gtest.h"
#include "tests/testing/device_fixture.h"
#include "tests/testing/status_matchers.h"

// The planner's account of a stage, computed from its layers, compared with that of the stage
// itself.
namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::TestDevice;

// Draws from one stream without end.
class Dice {
 public:
  explicit Dice(uint64_t seed) : random_(seed, 0) {}
  int64_t Below(uint64_t n) { return static_cast<int64_t>(random_.Below(index_++, n)); }
  Activation AnyActivation() { return static_cast<Activation>(Below(3)); }

 private:
  const base::RandomStream random_;
  uint64_t index_ = 0;
};

// Returns layers that keep the width, inside a residual layer.
std::vector<LayerFactory> RandomInner(Dice& dice, int64_t width, int depth) {
  std::vector<LayerFactory> layers;
  for (int64_t i = dice.Below(3); i >= 0; --i) {
    switch (dice.Below(depth == 0 ? 2 : 3)) {
      case 0:
        layers.push_back(LayerNorm());
        break;
      case 1:
        layers.push_back(Linear(width, dice.AnyActivation()));
        break;
      default:
        layers.push_back(Residual(RandomInner(dice, width, depth - 1)));
    }
  }
  return layers;
}

Model RandomModel(Dice& dice) {
  int64_t width = 1 + dice.Below(40);
  Model model{.input = Shape{width}};
  for (int64_t i = 1 + dice.Below(5); i >= 0; --i) {
    switch (dice.Below(4)) {
      case 0:
        model.layers.push_back(LayerNorm());
        break;
      case 1:
        model.layers.push_back(Residual(RandomInner(dice, width, 1)));
        break;
      default:
        width = 1 + dice.Below(40);
        model.layers.push_back(Linear(width, dice.AnyActivation()));
    }
  }
  return model;
}

// Checks every range of the model as a stage, in every place that a stage may have.
void ExpectStagesAsAggregated(const Model& model, const ProfileOptions& options,
                              int micro_batches) {
  TestDevice device(options.device.threads);
  ASSERT_OK_AND_ASSIGN(const ModelProfile profile, AnalyzeModel(model, options));
  const auto layers = absl::MakeConstSpan(profile.layers);
  const partition::EndMemory ends = profile.ends(micro_batches);
  for (int first = 0; first < model.num_layers(); ++first) {
    for (int last = first; last < model.num_layers(); ++last) {
      for (int place = 0; place < 8; ++place) {
        const partition::StagePosition position{.is_first = (place & 1) != 0,
                                                .is_last = (place & 2) != 0,
                                                .splits_backward = (place & 4) != 0};
        const StageOptions stage_options{.id = StageId(0),
                                         .first_layer = first,
                                         .last_layer = last,
                                         .is_first = position.is_first,
                                         .is_last = position.is_last,
                                         .splits_backward = position.splits_backward,
                                         .input = profile.inputs[static_cast<size_t>(first)],
                                         .micro_batch_rows = options.micro_batch_rows,
                                         .micro_batches = micro_batches,
                                         .optimizer = options.optimizer};
        EXPECT_OK(device.Run([&](kernels::Stream&) -> absl::Status {
          ASSIGN_OR_RETURN(
              const std::unique_ptr<Stage> stage,
              Stage::Create(device.device(), model, profile.parameters, stage_options));
          const auto range =
              layers.subspan(static_cast<size_t>(first), static_cast<size_t>(last - first + 1));
          EXPECT_EQ(stage->memory(),
                    partition::LayOutStage(partition::MemoryOf(range), ends, position))
              << "layers " << first << " to " << last << ", place " << place;
          return absl::OkStatus();
        }));
      }
    }
  }
}

class StageMemory : public ::testing::TestWithParam<int> {};

TEST_P(StageMemory, IsWhatThePlannerAddsUp) {
  Dice dice(static_cast<uint64_t>(GetParam()));
  for (int i = 0; i < 4; ++i) {
    const Model model = RandomModel(dice);
    ExpectStagesAsAggregated(
        model,
        {.micro_batch_rows = 1 + dice.Below(20),
         .optimizer = dice.Below(2) == 0 ? Optimizer::AdamW() : Optimizer::Sgd(),
         .device = {.threads = static_cast<int>(1 + dice.Below(2))}},
        /*micro_batches=*/static_cast<int>(1 + dice.Below(9)));
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, StageMemory, ::testing::Range(0, 6));

}  // namespace
}  // namespace stagecoach::engine
