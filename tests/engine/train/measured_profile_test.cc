#include "engine/train/measured_profile.h"

#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

#include "engine/nn/layers/linear.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using schedule::Op;

TEST(MeasureModel, MeasuresATimeForEveryOperation) {
  for (const int devices : {1, 2, 3, 100}) {
    for (const float clip_norm : {0.0F, 1.0F}) {
      Optimizer optimizer;
      optimizer.clip_norm = clip_norm;
      ASSERT_OK_AND_ASSIGN(
          const ModelProfile profile,
          MeasureModel(SmallModel(), {.micro_batch_rows = 4, .optimizer = optimizer},
                       {.repeats = 2, .devices = devices}));
      for (const partition::LayerCost& layer : profile.layers) {
        EXPECT_GT(layer.forward_ns, 0.0) << layer.name;
        EXPECT_GT(layer.backward_input_ns, 0.0) << layer.name;
        EXPECT_GT(layer.backward_weight_ns, 0.0) << layer.name;
      }
      EXPECT_GT(profile.overheads.step_ns, 0.0);
      EXPECT_EQ(profile.overheads.message_ns > 0.0, devices > 1);
      // Small updates can be lost in how much W varies when they are part of it.
      if (clip_norm > 0) {
        EXPECT_GT(profile.layers[0].step_ns, 0.0);
      }
    }
  }
}

TEST(MeasureModel, SizesAsTheAnalysisDoes) {
  const ProfileOptions options{.micro_batch_rows = 4, .device = {.threads = 2}};
  ASSERT_OK_AND_ASSIGN(const ModelProfile analyzed, AnalyzeModel(SmallModel(), options));
  ASSERT_OK_AND_ASSIGN(const ModelProfile measured,
                       MeasureModel(SmallModel(), options, {.repeats = 1, .devices = 2}));
  ASSERT_EQ(measured.layers.size(), analyzed.layers.size());
  for (size_t i = 0; i < analyzed.layers.size(); ++i) {
    EXPECT_EQ(measured.layers[i].memory, analyzed.layers[i].memory);
    EXPECT_EQ(measured.layers[i].name, analyzed.layers[i].name);
    EXPECT_EQ(measured.layers[i].flops, analyzed.layers[i].flops);
  }
  EXPECT_EQ(measured.ends(3).loss_resident_bytes, analyzed.ends(3).loss_resident_bytes);
}

// Layer i sleeps for i ms in F and for 4 - i ms in B: no other layer's times are as long.
TEST(MeasureModel, GivesEachLayerItsOwnTimes) {
  constexpr int kSleepers = 5;
  std::vector<ProbeHooks> hooks(kSleepers);
  Model model{.input = Shape{kSmallFeatures}};
  for (int i = 0; i < kSleepers; ++i) {
    hooks[static_cast<size_t>(i)].before = [i](Op op, int) {
      const int ms = op == Op::kForward ? i : kSleepers - 1 - i;
      std::this_thread::sleep_for(std::chrono::milliseconds(ms));
      return absl::OkStatus();
    };
    model.layers.push_back(Probe(&hooks[static_cast<size_t>(i)]));
  }
  model.layers.push_back(Linear(kSmallClasses));
  for (const int devices : {1, 2}) {
    ASSERT_OK_AND_ASSIGN(
        const ModelProfile profile,
        MeasureModel(model, {.micro_batch_rows = 2}, {.repeats = 1, .devices = devices}));
    for (int i = 0; i < kSleepers; ++i) {
      const partition::LayerCost& layer = profile.layers[static_cast<size_t>(i)];
      EXPECT_GE(layer.forward_ns, 1e6 * i);
      EXPECT_GE(layer.backward_input_ns, 1e6 * (kSleepers - 1 - i));
    }
  }
}

TEST(MeasureModel, SaysHowFarTheRepeatsWereApart) {
  ProbeHooks hooks;
  int calls = 0;
  hooks.before = [&calls](Op, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(calls++ / 8 % 2));
    return absl::OkStatus();
  };
  const Model model{.input = Shape{kSmallFeatures},
                    .layers = {Probe(&hooks), Linear(kSmallClasses)}};
  ASSERT_OK_AND_ASSIGN(const ModelProfile one,
                       MeasureModel(model, {.micro_batch_rows = 2}, {.repeats = 1}));
  EXPECT_EQ(one.layers[0].spread, 0.0);
  ASSERT_OK_AND_ASSIGN(const ModelProfile four,
                       MeasureModel(model, {.micro_batch_rows = 2}, {.repeats = 4}));
  EXPECT_GT(four.layers[0].spread, 0.0);
}

TEST(MeasureModel, MeasuresUpdatesApart) {
  ASSERT_OK_AND_ASSIGN(const ModelProfile profile,
                       MeasureModel(SmallModel(), {.micro_batch_rows = 4},
                                    {.repeats = 2, .devices = 2, .updates_apart = true}));
  EXPECT_FALSE(profile.updates_in_backward);
  EXPECT_GT(profile.layers[0].step_ns, 0.0);
}

TEST(MeasureExchange, IsARate) {
  for (const int replicas : {2, 4}) {
    ASSERT_OK_AND_ASSIGN(const double bytes_per_second,
                         MeasureExchange({.memory_bytes = 1}, replicas));
    EXPECT_GT(bytes_per_second, 1e6) << replicas;
    EXPECT_LT(bytes_per_second, 1e12) << replicas;
  }
}

TEST(MeasureHostLink, OfACpuDeviceIsARateAndOccupiesIt) {
  ASSERT_OK_AND_ASSIGN(const schedule::HostLink host, MeasureHostLink({.memory_bytes = 1}));
  EXPECT_GT(host.link.bytes_per_second, 1e7);
  EXPECT_LT(host.link.bytes_per_second, 1e12);
  EXPECT_TRUE(host.occupies_rank);
}

TEST(MeasureProfile, HasEverySizeAndPassesTheChecksOfThePlanner) {
  ASSERT_OK_AND_ASSIGN(const partition::Profile profile,
                       MeasureProfile(SmallModel(), "small", {2, 8}, {}, {.repeats = 1}));
  EXPECT_OK(CheckProfile(profile));
  ASSERT_EQ(profile.sizes.size(), 2U);
  EXPECT_EQ(profile.sizes[1].micro_batch_rows, 8);
}

}  // namespace
}  // namespace stagecoach::engine
