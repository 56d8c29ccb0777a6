// Stashes that are moved to the host's memory and back, and optimizers whose state is there, on CPU
// devices and on GPUs: they change no bit, and the memory of both is as predicted.
#include <algorithm>
#include <numeric>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "schedule/transforms/lowering.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/planned_runs.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TestFolder;

struct OffloadModel {
  const char* name;
  Model (*model)();
};
constexpr OffloadModel kOffloadLayers = {"layers", TinyModel};
constexpr OffloadModel kOffloadGpt2 = {"gpt2", Gpt2Model};
constexpr OffloadModel kOffloadLora = {"lora", LoraModel};

struct OffloadCase {
  OffloadModel model;
  int devices = 4;
  std::string schedule = "1f1b";
  partition::Replication replication = {};
  Recompute recompute = Recompute::kPlanned;
  int tensor_parts = 1;
  bool saves = true;  // a part of the first device's peak
};

TinyRun OffloadRun(const OffloadCase& c, DeviceKind kind, double offload,
                   bool offloads_optimizer = false) {
  TinyRun run{.model = c.model.model(),
              .devices = c.devices,
              .tensor_parts = c.tensor_parts,
              .schedule = c.schedule,
              .replication = c.replication,
              .recompute = c.recompute,
              .offload = offload};
  run.replication.offloads_optimizer = offloads_optimizer;
  run.options.optimizer.clip_norm = 0.05F;
  run.options.device.kind = kind;
  if (kind == DeviceKind::kCuda) {
    const auto devices = static_cast<size_t>(c.devices * c.replication.replicas * c.tensor_parts);
    run.options.device.gpus.assign(devices, 0);
    run.options.device.precision = Precision::kBfloat16;
    run.options.exchange = Exchange::kCopies;
  }
  return run;
}

std::string OffloadName(DeviceKind kind, const OffloadCase& c) {
  return absl::StrReplaceAll(
      absl::StrCat(kind == DeviceKind::kCuda ? "cuda" : "cpu", "_", c.model.name, "_", c.schedule,
                   c.devices, c.replication.replicas > 1 ? "_replicas" : "",
                   c.replication.shards_optimizer ? "_sharded" : "",
                   c.recompute == Recompute::kPlanned ? "" : "_recomputed"),
      {{"-", "_"}});
}

class Offload : public ::testing::TestWithParam<std::tuple<DeviceKind, OffloadCase>> {
 protected:
  void SetUp() override {
    if (std::get<0>(GetParam()) == DeviceKind::kCuda && NumGpus() == 0) GTEST_SKIP() << "no GPU";
  }
};

TEST_P(Offload, ChangesNoBitAndTakesThePredictedMemory) {
  const auto& [kind, c] = GetParam();
  ASSERT_OK_AND_ASSIGN(const auto kept, TinyTrainer(OffloadRun(c, kind, 0.0)));
  ASSERT_OK_AND_ASSIGN(const TinyAnswer expected, AnswerOf(*kept));
  const std::vector<DeviceReport> kept_devices = kept->Devices().value();
  for (const double share : {0.4, 1.0}) {
    SCOPED_TRACE(share);
    const bool offloads_optimizer = share == 1.0;
    ASSERT_OK_AND_ASSIGN(const auto trainer,
                         TinyTrainer(OffloadRun(c, kind, share, offloads_optimizer)));
    ASSERT_OK_AND_ASSIGN(const TinyAnswer answer, AnswerOf(*trainer));
    EXPECT_EQ(answer, expected);
    ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
    int64_t moved = 0;
    for (size_t i = 0; i < devices.size(); ++i) {
      const DeviceReport& device = devices[i];
      EXPECT_EQ(device.measured_peak_bytes, device.predicted_peak_bytes) << device.device;
      EXPECT_EQ(device.measured_stash_bytes, device.predicted_stash_bytes) << device.device;
      EXPECT_EQ(device.measured_host_bytes, device.predicted_host_bytes) << device.device;
      EXPECT_EQ(device.measured_sent, device.predicted_sent) << device.device;
      EXPECT_LE(device.measured_stash_bytes, kept_devices[i].measured_stash_bytes);
      EXPECT_EQ(kept_devices[i].measured_host_bytes, 0);
      moved += device.measured_host_bytes;
    }
    EXPECT_GT(moved, 0);
    if (share == 1.0 && c.saves) {
      EXPECT_LT(devices[0].measured_stash_bytes, kept_devices[0].measured_stash_bytes);
    }
  }
}

std::vector<OffloadCase> OffloadCases() {
  std::vector<OffloadCase> cases = {
      {.model = kOffloadLayers, .saves = false},
      {kOffloadLayers, 2, "gpipe"},
      {kOffloadLayers, 4, "zb-h1"},
      {kOffloadLayers, 2, "interleaved"},
      {kOffloadLayers, 2, "looped-bfs"},
      {kOffloadLayers, 2, "dualpipe-v"},
      {kOffloadGpt2, 2, "zb-v"},
      {kOffloadGpt2, 4, "zb-h2"},
      {kOffloadGpt2, 2, "looped-bfs", {.replicas = 2, .gradient_blocks = 4}},
      {kOffloadGpt2,
       2,
       "looped-bfs",
       {.replicas = 2, .gradient_blocks = 2, .shards_optimizer = true}},
      {kOffloadGpt2, 2, "gpipe", {}, Recompute::kAttention},
      {kOffloadLora, 2, "gpipe"},
  };
  return cases;
}

std::string NameOfOffload(const ::testing::TestParamInfo<Offload::ParamType>& test) {
  return OffloadName(std::get<0>(test.param), std::get<1>(test.param));
}

INSTANTIATE_TEST_SUITE_P(On, Offload,
                         ::testing::Combine(::testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                                            ::testing::ValuesIn(OffloadCases())),
                         NameOfOffload);

class OffloadedOptimizer : public Offload {};

// With an exponential average of the parameters, which is part of the state.
TEST_P(OffloadedOptimizer, HasItsStateInTheHostsMemoryAndInCheckpoints) {
  const auto& [kind, c] = GetParam();
  TinyRun run = OffloadRun(c, kind, 0.0);
  run.options.optimizer.ema_decay = 0.9F;
  ASSERT_OK_AND_ASSIGN(const auto kept, TinyTrainer(run));
  ASSERT_OK_AND_ASSIGN(const TinyAnswer expected, AnswerOf(*kept));
  run.replication.offloads_optimizer = true;
  ASSERT_OK_AND_ASSIGN(const auto trainer, TinyTrainer(run));
  ASSERT_OK_AND_ASSIGN(const TinyAnswer answer, AnswerOf(*trainer));
  EXPECT_EQ(answer, expected);
  ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> kept_devices, kept->Devices());
  ASSERT_OK_AND_ASSIGN(const std::vector<DeviceReport> devices, trainer->Devices());
  for (size_t i = 0; i < devices.size(); ++i) {
    EXPECT_EQ(devices[i].measured_peak_bytes, devices[i].predicted_peak_bytes);
    EXPECT_EQ(devices[i].measured_host_bytes, devices[i].predicted_host_bytes);
    // Both have at most two stages, whose parts are rounded up.
    EXPECT_NEAR(devices[i].measured_peak_bytes + devices[i].measured_host_bytes,
                kept_devices[i].measured_peak_bytes, 2 * schedule::kBlockAlignment);
    EXPECT_GT(devices[i].measured_host_bytes, 0);
  }
  // A checkpoint holds it all, and resumes where the state is elsewhere.
  const TestFolder folder;
  ASSERT_OK_AND_ASSIGN(const std::string path, trainer->Save(folder.path()));
  run.replication.offloads_optimizer = false;
  ASSERT_OK_AND_ASSIGN(const auto resumed, TinyTrainer(run));
  ASSERT_OK(resumed->Restore(path));
  run.replication.offloads_optimizer = true;
  ASSERT_OK_AND_ASSIGN(const auto offloaded, TinyTrainer(run));
  ASSERT_OK(offloaded->Restore(path));
  ASSERT_OK_AND_ASSIGN(const TinyAnswer next, AnswerOf(*trainer));
  EXPECT_EQ(AnswerOf(*resumed).value(), next);
  EXPECT_EQ(AnswerOf(*offloaded).value(), next);
}

INSTANTIATE_TEST_SUITE_P(
    On, OffloadedOptimizer,
    ::testing::Combine(::testing::Values(DeviceKind::kCpu, DeviceKind::kCuda),
                       ::testing::Values(OffloadCase{kOffloadLayers, 2, "interleaved"},
                                         OffloadCase{kOffloadLora, 2, "gpipe"},
                                         OffloadCase{kOffloadGpt2,
                                                     2,
                                                     "looped-bfs",
                                                     {.replicas = 2,
                                                      .gradient_blocks = 2,
                                                      .shards_optimizer = true}})),
    NameOfOffload);

TEST(OffloadTest, OfASearchForTheFirstNaNFindsTheSame) {
  for (const double share : {0.0, 1.0}) {
    TinyRun run = OffloadRun({kOffloadLayers, 2, "gpipe"}, DeviceKind::kCpu, share);
    run.options.learning_rate = LearningRate::Constant(1e30F);
    run.options.on_nonfinite = OnNonFinite::kStop;
    const absl::Status status = AnswerOf(run).status();
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kOutOfRange, "layer"));
    static auto* const first = new std::string(status.message());
    EXPECT_EQ(status.message(), *first);
  }
}

// A schedule of a file says itself what is moved, whatever the plan's share.
TEST(OffloadTest, MayBeWrittenInASchedule) {
  ASSERT_OK_AND_ASSIGN(const TinyAnswer expected,
                       AnswerOf(OffloadRun({kOffloadLayers}, DeviceKind::kCpu, 0.0)));
  partition::Plan plan = EvenPlan(TinyModel(), 4, "1f1b", kTinyMicroBatches, kTinyMicroBatchRows);
  plan.schedule = schedule::Lower(plan.schedule, {.offload = 0.4}).value();
  TrainerOptions options;
  options.optimizer.clip_norm = 0.05F;
  std::vector<int64_t> host_bytes;
  for (const double share : {0.0, 1.0}) {
    plan.offload = share;
    ASSERT_OK_AND_ASSIGN(const auto trainer, Trainer::Create(TinyModel(), plan, options));
    EXPECT_EQ(AnswerOf(*trainer).value(), expected);
    host_bytes.push_back(trainer->Devices()->front().measured_host_bytes);
  }
  EXPECT_GT(host_bytes[0], 0);
  EXPECT_EQ(host_bytes[1], host_bytes[0]);
}

}  // namespace
}  // namespace stagecoach::engine
