// Devices that differ in memory, speed and threads: where the model is cut depends on them, what is
// trained does not.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kUnequalSteps = 2;

PlanOptions OnThree(const partition::Cluster& cluster) {
  return {.devices = 3, .micro_batches = 4, .micro_batch_rows = 3, .device = {.cluster = cluster}};
}

// Returns the hash of the parameters after some steps, in which every device has taken what was
// predicted and has stayed within its memory.
std::string HashOfTrained(const PreparedRun& run) {
  auto trainer = Trainer::Create(run, {.device = run.device});
  EXPECT_OK(trainer);
  if (!trainer.ok()) return "";
  const int64_t rows = run.plan().batch_rows();
  const auto data = SmallData(rows);
  for (int step = 0; step < kUnequalSteps; ++step) {
    EXPECT_OK((*trainer)->Step(*data, Rows(0, rows)));
  }
  const auto devices = (*trainer)->Devices();
  EXPECT_OK(devices);
  for (size_t i = 0; devices.ok() && i < devices->size(); ++i) {
    EXPECT_EQ((*devices)[i].measured_peak_bytes, (*devices)[i].predicted_peak_bytes) << i;
    const int64_t limit_bytes = run.device.memory_bytes_of(static_cast<int>(i));
    if (limit_bytes <= 0) continue;
    EXPECT_LE((*devices)[i].measured_peak_bytes, limit_bytes) << i;
  }
  return (*trainer)->ParametersHash().value_or("");
}

TEST(UnequalDevices, TrainTheSameBitsWithinTheMemoryOfEach) {
  ASSERT_OK_AND_ASSIGN(const PreparedRun equal, PrepareRun(SmallModel(), OnThree({})));
  const std::string expected = HashOfTrained(equal);
  partition::Cluster cluster = partition::UniformCluster(3);
  cluster.devices[2].memory_bytes = equal.compiled.ranks[2].peak_bytes() / 2;
  ASSERT_OK_AND_ASSIGN(const PreparedRun small, PrepareRun(SmallModel(), OnThree(cluster)));
  EXPECT_NE(small.plan().first_layer, equal.plan().first_layer);
  EXPECT_EQ(HashOfTrained(small), expected);

  // The one that was small is fast, and has most of the work; the first has two threads.
  cluster.devices[2] = {.name = "fast", .speed = 50};
  cluster.devices[0].threads = 2;
  ASSERT_OK_AND_ASSIGN(const PreparedRun fast, PrepareRun(SmallModel(), OnThree(cluster)));
  EXPECT_GT(fast.compiled.stages[2].time_share, equal.compiled.stages[2].time_share);
  EXPECT_EQ(HashOfTrained(fast), expected);

  PlanOptions any = OnThree(cluster);
  any.schedule = "auto";
  ASSERT_OK_AND_ASSIGN(const PreparedRun searched, PrepareRun(SmallModel(), any));
  EXPECT_GT(searched.compiled.stages[2].time_share, equal.compiled.stages[2].time_share);
  EXPECT_EQ(HashOfTrained(searched), expected);
}

// Each rank has a device of each replica: the smaller of the two counts.
TEST(UnequalDevices, AreThoseOfEachReplica) {
  PlanOptions options = {.devices = 2,
                         .replication = {.replicas = 2, .gradient_blocks = 2},
                         .micro_batches = 4,
                         .micro_batch_rows = 3};
  ASSERT_OK_AND_ASSIGN(const PreparedRun equal, PrepareRun(SmallModel(), options));
  options.device.cluster = partition::UniformCluster(4);
  options.device.cluster.devices[3].memory_bytes = equal.compiled.ranks[1].peak_bytes() - 1;
  ASSERT_OK_AND_ASSIGN(const PreparedRun small, PrepareRun(SmallModel(), options));
  EXPECT_GT(small.plan().first_layer[1], equal.plan().first_layer[1]);
  EXPECT_EQ(HashOfTrained(small), HashOfTrained(equal));
}

TEST(UnequalDevices, AreRefusedIfTheyAreTooSmallOrTooFew) {
  partition::Cluster cluster = partition::UniformCluster(3);
  cluster.devices[1] = {.name = "tiny", .memory_bytes = 100};
  EXPECT_THAT(PrepareRun(SmallModel(), OnThree(cluster)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       AllOf(HasSubstr("the model does not fit"),
                             HasSubstr("the memory of device tiny is 100 B"))));
  EXPECT_THAT(PrepareRun(SmallModel(), OnThree(partition::UniformCluster(2))),
              IsRefused("the cluster has 2 devices, and 3 are needed"));
  PlanOptions on_gpus = OnThree(cluster);
  on_gpus.device.cluster.devices[1].threads = 2;
  on_gpus.device.kind = DeviceKind::kCuda;
  EXPECT_THAT(CheckClusterOf(on_gpus.device, 3),
              IsRefused("device tiny of the cluster has 2 threads, which only CPU devices have"));

  // A plan that is given does not fit, which the device finds.
  const partition::Plan plan = EvenPlan(SmallModel(), 3, "1f1b", 4, 3);
  EXPECT_THAT(Trainer::Create(SmallModel(), plan, {.device = {.cluster = cluster}}),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

}  // namespace
}  // namespace stagecoach::engine
