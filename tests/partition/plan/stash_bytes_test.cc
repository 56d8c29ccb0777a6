#include "partition/plan/stash_bytes.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "partition/search/balance_stages.h"
#include "schedule/memory/stash.h"

namespace stagecoach::partition {
namespace {

constexpr int kMicroBatches = 8;

// Returns twelve equal layers whose three passes take equally long.
BalanceRequest EqualLayers(int devices) {
  BalanceRequest request;
  for (int i = 0; i < 12; ++i) {
    LayerCost layer{.name = "layer", .parameters = 10};
    layer.forward_ns = layer.backward_input_ns = layer.backward_weight_ns = 1000;
    layer.step_ns = 100;
    layer.memory.parameter_bytes = 40;
    layer.memory.input_bytes = layer.memory.output_bytes = 512;
    layer.memory.stash_bytes = 4096;
    request.layers.push_back(layer);
  }
  request.cluster = UniformCluster(devices);
  return request;
}

// The memory planner's peaks, in units of one stage's micro-batches.
TEST(StashBytes, GiveThePeaksOfTheMemoryPlanner) {
  for (const char* name : {"1f1b", "zb-h1", "zb-h2", "zb-v"}) {
    BalanceRequest request = EqualLayers(3);
    request.schedule = GeneratedSchedule(name, kMicroBatches);
    const CompiledPlan plan = BalanceStages(request).value();
    const std::vector<double> peaks =
        PeakStash(plan.lowered->training, StashBytes(plan.memory_of_stages()));
    for (size_t rank = 0; rank < peaks.size(); ++rank) {
      // Neighboring stages on one rank share the tensor between them.
      EXPECT_GE(peaks[rank], static_cast<double>(plan.ranks[rank].training.peak_stash_bytes))
          << name << " " << rank;
      EXPECT_LE(peaks[rank], 1.3 * static_cast<double>(plan.ranks[rank].training.peak_stash_bytes))
          << name << " " << rank;
    }
  }
}

}  // namespace
}  // namespace stagecoach::partition
