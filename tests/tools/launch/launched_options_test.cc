#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/comm/launch.h"
#include "engine/session/process_group.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/cost/cluster.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

engine::Launch LaunchOf(int rank, int ranks, int local_rank) {
  return {.rank = rank, .ranks = ranks, .local_rank = local_rank, .launcher = "srun"};
}

engine::RunConfig OnCuda() {
  engine::RunConfig options;
  options.device.kind = "cuda";
  return options;
}

TEST(RankOptions, HaveAStageForEachProcess) {
  const engine::RunConfig options = OptionsOfRank(LaunchOf(2, 3, 0), OnCuda()).value();
  EXPECT_EQ(options.rank, 2);
  EXPECT_EQ(options.stages, 3);
  EXPECT_EQ(options.device.exchange, "nccl");
}

TEST(RankOptions, RefuseAnotherNumberOfStages) {
  engine::RunConfig options = OnCuda();
  options.stages = 4;
  EXPECT_THAT(OptionsOfRank(LaunchOf(0, 2, 0), options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("srun"), HasSubstr("2 processes for 4 devices"))));
}

TEST(RankOptions, HaveAProcessForEachReplicaOfAStage) {
  engine::RunConfig options;
  options.replicas = 2;
  EXPECT_EQ(OptionsOfRank(LaunchOf(0, 6, 0), options).value().stages, 3);
  options.stages = 2;
  EXPECT_OK(OptionsOfRank(LaunchOf(0, 4, 0), options));
  EXPECT_THAT(OptionsOfRank(LaunchOf(0, 2, 0), options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("2 processes for 4 devices (--stages 2, --replicas 2)")));
}

engine::RunConfig OnDevicesOf(std::vector<int64_t> memory_bytes) {
  engine::RunConfig options;
  options.cluster = partition::UniformCluster(static_cast<int>(memory_bytes.size()));
  for (size_t i = 0; i < memory_bytes.size(); ++i) {
    options.cluster->devices[i].memory_bytes = memory_bytes[i];
  }
  return options;
}

std::vector<int64_t> MemoryOf(const engine::RunConfig& options) {
  std::vector<int64_t> bytes;
  for (const partition::ClusterDevice& device : options.cluster->devices) {
    bytes.push_back(device.memory_bytes);
  }
  return bytes;
}

TEST(RankOptions, KeepTheDevicesThatAreLeftOfACluster) {
  engine::Launch launch = LaunchOf(0, 2, 0);
  launch.restarts = 1;
  launch.devices = {0, 2};
  engine::RunConfig options = OptionsOfRank(launch, OnDevicesOf({10, 20, 30})).value();
  EXPECT_THAT(MemoryOf(options), ::testing::ElementsAre(10, 30));
  EXPECT_EQ(options.stages, 2);
  options = OnDevicesOf({10, 20, 30});
  options.stages = 3;
  options = OptionsOfRank(launch, options).value();
  EXPECT_THAT(MemoryOf(options), ::testing::ElementsAre(10, 30));
  EXPECT_EQ(options.devices_left, 2);
  launch.devices = {0, 3};
  EXPECT_THAT(OptionsOfRank(launch, OnDevicesOf({10, 20, 30})),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("STAGECOACH_DEVICES names device 3, but the cluster has 3")));
}

TEST(RankOptions, AskForTheDevicesThatAreLeftWhereTheLauncherDoesNotTell) {
  engine::Launch launch = LaunchOf(0, 2, 0);
  launch.restarts = 1;
  engine::RunConfig options = OnDevicesOf({10, 20, 30});
  EXPECT_THAT(OptionsOfRank(launch, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("2 processes for 3 devices (the cluster)")));
  options.stages = 3;
  EXPECT_THAT(OptionsOfRank(launch, options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("name a cluster of those that are left")));
}

TEST(RankOptions, RefuseDevicesThatEachProcessWouldChoose) {
  engine::RunConfig options;
  options.device.kind = "auto";
  EXPECT_THAT(OptionsOfRank(LaunchOf(0, 2, 0), options),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("--device cpu or")));
}

TEST(GpuOfRank, IsThatOfTheLocalRank) {
  EXPECT_EQ(GpuOfRank(LaunchOf(0, 4, 0), 4).value(), 0);
  EXPECT_EQ(GpuOfRank(LaunchOf(3, 4, 3), 4).value(), 3);
  EXPECT_EQ(GpuOfRank(LaunchOf(3, 4, 1), 2).value(), 1);
}

TEST(GpuOfRank, IsTheOnlyOneThatTheProcessSees) {
  EXPECT_EQ(GpuOfRank(LaunchOf(3, 4, 3), 1).value(), 0);
}

TEST(GpuOfRank, IsNoneAmongSeveralButTooFew) {
  EXPECT_THAT(GpuOfRank(LaunchOf(7, 8, 3), 2),
              StatusIs(absl::StatusCode::kUnavailable,
                       AllOf(HasSubstr("local rank 3"), HasSubstr("sees 2 GPUs"),
                             HasSubstr("CUDA_VISIBLE_DEVICES"), HasSubstr("--gpus"))));
}

TEST(ChooseGpu, LeavesWhatTheUserHasNamed) {
  engine::RunConfig options = OnCuda();
  options.device.gpus = {5, 6};
  EXPECT_OK(ChooseGpu(LaunchOf(1, 2, 1), options));
  EXPECT_THAT(options.device.gpus, ::testing::ElementsAre(5, 6));
}

}  // namespace
}  // namespace stagecoach::tools
