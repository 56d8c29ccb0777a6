// Training on CUDA devices as a user sees it. GPUs are emulated (tests/testing/cuda/stand_in.h).
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/test_folder.h"
#include "tests/testing/tolerance.h"
#include "tests/tools/child.h"
#include "tests/tools/cuda_machine.h"
#include "tests/tools/cuda_run.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

using engine::TestDirectory;
using kernels::DType;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

// Returns how far apart the losses of two runs of gradient descent may be. To first order a
// rounding error is passed on in proportion to the value that it is in, so a loss is off by at most
// the number of roundings on the longest path times the loss; so are gradients. The gradients
// change the loss, over all steps, by less than the loss itself; hence the factor of two. A sum of
// n products rounds n times; a layer norm, an activation or the loss at most 12 times.
double LossTolerance(const std::string& precision, double loss) {
  constexpr int kLinear = kLayers, kOthers = 4;  // layer norm, sum of the residual, two activations
  constexpr int64_t kSums = 2 * (kFeatures + kWidth + kWidth) + kBatch + 2 * 12 * (kOthers + 1);
  double roundings = testing::Gamma(kSums, DType::kFloat32);
  // The three products of a layer round both operands.
  if (precision == "tf32") roundings += 2 * 3 * kLinear * std::ldexp(1.0, -10);
  // An operation rounds what it reads, writes and keeps, and the gradients of these.
  if (precision == "bf16") roundings += testing::Gamma(7 * (kLinear + kOthers), DType::kBfloat16);
  return 2 * roundings * loss;
}

TEST(CudaTrain, LossesAreTheCpus) {
  const CudaMachine machine("gpus=2");
  const Arguments descent = {"--optimizer", "sgd", "--momentum", "0"};
  const nlohmann::json cpu = EventsOf(descent)[1];
  for (const char* precision : {"fp32", "tf32", "bf16"}) {
    const nlohmann::json cuda =
        EventsOf(Joined(descent, {"--device", "cuda", "--precision", precision}))[1];
    for (const char* loss : {"loss", "test_loss"}) {
      const auto expected = cpu[loss].get<double>();
      EXPECT_NEAR(cuda[loss].get<double>(), expected, LossTolerance(precision, expected))
          << precision << " " << loss;
    }
  }
}

TEST(CudaTrain, PrecisionsAreDifferent) {
  const CudaMachine machine("gpus=2");
  const nlohmann::json fp32 = EventsOf({"--device", "cuda"}).back();
  const nlohmann::json bf16 = EventsOf({"--device", "cuda", "--precision", "bf16"}).back();
  EXPECT_NE(bf16["step_losses_hash"], fp32["step_losses_hash"]);
}

TEST(CudaTrain, ThePartitionNeverChangesTheAnswer) {
  const CudaMachine machine("gpus=2");
  const Arguments four_layers = {"--device", "cuda", "--layers", "4"};
  const nlohmann::json one = EventsOf(Joined(four_layers, {"--stages", "1"})).back();
  for (const Arguments& more : std::vector<Arguments>{{"--exchange", "nccl"},
                                                      {"--exchange", "copies"},
                                                      {"--gpus", "1,0", "--schedule", "zb-h1"},
                                                      {"--stages", "4", "--gpus", "0,0,0,0"}}) {
    const nlohmann::json end = EventsOf(Joined(four_layers, more)).back();
    EXPECT_EQ(end["step_losses_hash"], one["step_losses_hash"]) << more[1];
    EXPECT_EQ(end["parameters_hash"], one["parameters_hash"]) << more[1];
  }
}

TEST(CudaTrain, FourStagesTrainOnOneGpu) {
  const CudaMachine machine("gpus=2");
  const nlohmann::json end =
      EventsOf({"--device", "cuda", "--layers", "4", "--stages", "4", "--gpus", "0,0,0,0"}).back();
  ASSERT_THAT(end["devices"], SizeIs(4));
  EXPECT_EQ(end["devices"][3]["device"], "cuda:3");
  EXPECT_EQ(end["steps"], kSteps);
}

TEST(CudaTrain, MeasuredPeaksEqualThePredictedOnes) {
  const CudaMachine machine("gpus=2");
  for (const Arguments& more : std::vector<Arguments>{{"--exchange", "nccl"},
                                                      {"--exchange", "copies"},
                                                      {"--gpus", "0,0", "--precision", "bf16"}}) {
    const std::vector<nlohmann::json> events = EventsOf(Joined({"--device", "cuda"}, more));
    const nlohmann::json& predicted = events[0]["devices"];
    const nlohmann::json& measured = events.back()["devices"];
    ASSERT_EQ(measured.size(), predicted.size());
    for (size_t i = 0; i < measured.size(); ++i) {
      EXPECT_EQ(measured[i]["measured_peak_bytes"], predicted[i]["predicted_peak_bytes"])
          << more[1];
      EXPECT_EQ(measured[i]["measured_stash_bytes"], predicted[i]["memory_bytes"]["stash"])
          << more[1];
    }
  }
}

TEST(CudaTrain, CountsGraphs) {
  {
    const CudaMachine machine("gpus=2");
    const nlohmann::json end = EventsOf({"--device", "cuda"}).back();
    for (const nlohmann::json& device : end["devices"]) {
      EXPECT_GT(device["graphs"]["captured"], 0);
      EXPECT_GT(device["graphs"]["replayed"], device["graphs"]["captured"]);
      EXPECT_EQ(device["graphs"]["plain"], 0);
    }
  }
  const CudaMachine machine("gpus=2,graphs=0");
  const Finished run = RunStagecoach(SmallRun({"--device", "cuda"}));
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.out,
              ::testing::ContainsRegex("cuda:1: [0-9]+ of [0-9]+ actions took more than one call, "
                                       "for want of a CUDA graph: cudaStreamBeginCapture"));
}

// A plan that has room for grouped transfers, which receive later, may not have room for copies.
TEST(CudaTrain, PlansForTheTransfersThatItPerforms) {
  const CudaMachine machine("gpus=2");
  const auto largest_peak = [](const Arguments& more) {
    int64_t peak_bytes = 0;
    const nlohmann::json start = EventsOf(Joined({"--device", "cuda"}, more)).front();
    for (const nlohmann::json& device : start["devices"]) {
      peak_bytes = std::max(peak_bytes, device["predicted_peak_bytes"].get<int64_t>());
    }
    return peak_bytes;
  };
  const Arguments in_groups = {"--exchange", "nccl", "--schedule", "gpipe"};
  const int64_t peak_bytes = largest_peak(in_groups);
  ASSERT_LT(peak_bytes, largest_peak({"--exchange", "copies", "--schedule", "gpipe"}));
  const std::string budget = std::to_string(peak_bytes);
  EXPECT_EQ(largest_peak(Joined(in_groups, {"--device-memory", budget})), peak_bytes);
}

TEST(CudaTrain, KeepsEachGpuWithinItsOwnMemoryOfACluster) {
  const CudaMachine machine("gpus=2");
  const stagecoach::testing::TestFolder folder;
  const std::string cluster = (folder.path() / "cluster.toml").string();
  const nlohmann::json equal = EventsOf({"--device", "cuda", "--schedule", "1f1b"}).back();
  const auto budget = equal["devices"][0]["measured_peak_bytes"].get<int64_t>() - 1;
  std::ofstream(cluster) << "version = 1\n[[group]]\ndevices = 1\nmemory = \"" << budget
                         << "\"\n[[group]]\ndevices = 1\n";
  const nlohmann::json end =
      EventsOf({"--device", "cuda", "--schedule", "1f1b", "--cluster", cluster}).back();
  EXPECT_EQ(end["parameters_hash"], equal["parameters_hash"]);
  for (const nlohmann::json& device : end["devices"]) {
    EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
  }
  EXPECT_LE(end["devices"][0]["measured_peak_bytes"], budget);
}

TEST(CudaTrain, TheMemoryOfTheGpuIsListedApart) {
  const CudaMachine machine("gpus=2,memory=256MB,context=1MB");
  const nlohmann::json end = EventsOf({"--device", "cuda"}).back();
  ASSERT_FALSE(end["devices"].empty());
  for (const nlohmann::json& device : end["devices"]) {
    const nlohmann::json& memory = device["accelerator"];
    EXPECT_GT(memory["allocated_bytes"], device["measured_peak_bytes"]) << "tables";
    EXPECT_EQ(memory["context_bytes"], 1'000'000);
    EXPECT_GE(memory["library_bytes"], 0);
  }
  EXPECT_THAT(RunStagecoach(SmallRun({"--device", "cuda", "--verbose"})).out,
              AllOf(HasSubstr("allocated"), HasSubstr("context"), HasSubstr("libraries")));
}

TEST(CudaTrain, OnTheCpuThereIsNoGpuToMeasure) {
  const nlohmann::json end = EventsOf({}).back();
  ASSERT_FALSE(end["devices"].empty());
  for (const nlohmann::json& device : end["devices"]) EXPECT_FALSE(device.contains("accelerator"));
  EXPECT_THAT(RunStagecoach(SmallRun({})).out, Not(HasSubstr("libraries")));
}

// ---- The algorithm file.

bool Exists(const std::string& path) {
  struct stat unused = {};
  return stat(path.c_str(), &unused) == 0;
}

TEST(CudaReplay, IsOnTheDevicesOfTheRunUnlessOthersAreNamed) {
  const CudaMachine machine("gpus=2");
  const std::string run = TestDirectory() + "/run";
  EventsOf(
      {"--device", "auto", "--precision", "bf16", "--checkpoint-every", "4", "--checkpoint", run});
  const Finished again = RunStagecoach({"replay", "--json", run, "--steps", "4"});
  EXPECT_EQ(again.exit_status, 0) << again.err;
  EXPECT_EQ(again.err, "");
  const std::vector<nlohmann::json> events = again.Events();
  for (const nlohmann::json& plan : events[0]["plans"]) EXPECT_EQ(plan["kind"], "cuda");
  EXPECT_EQ(events[1]["same"], true);  // what the run saved after its last step

  const Finished on_cpu =
      RunStagecoach({"replay", "--json", run, "--steps", "4", "--device", "cpu"});
  EXPECT_EQ(on_cpu.exit_status, 0) << on_cpu.err;
  EXPECT_THAT(on_cpu.err, AllOf(HasSubstr("the results will not be those of the run"),
                                HasSubstr("--precision was bf16 and is fp32"),
                                HasSubstr("--device was cuda and is cpu")));
  EXPECT_THAT(std::string(on_cpu.Events()[1]["not_compared"]), HasSubstr("--device was cuda"));
}

TEST(CudaTuning, ChoicesAreKeptInTheCacheFolder) {
  const CudaMachine machine("gpus=2");
  const nlohmann::json first = EventsOf({"--device", "cuda"}).back();
  EXPECT_TRUE(Exists(machine.tuning_file()));
  EXPECT_EQ(EventsOf({"--device", "cuda"}).back()["parameters_hash"], first["parameters_hash"]);
}

TEST(CudaTuning, NoneKeepsNothing) {
  const CudaMachine machine("gpus=2");
  EventsOf({"--device", "cuda", "--tuning", "none"});
  EXPECT_FALSE(Exists(machine.tuning_file()));
}

TEST(CudaTuning, AFileCanBeNamed) {
  const CudaMachine machine("gpus=2");
  const std::string path = machine.tuning_file() + ".mine";
  STAGECOACH_CHECK(mkdir(path.substr(0, path.rfind('/')).c_str(), 0700) == 0, path);
  EventsOf({"--device", "cuda", "--tuning", path});
  EXPECT_TRUE(Exists(path));
  EXPECT_FALSE(Exists(machine.tuning_file()));
}

TEST(CudaTuning, WithoutAPlaceForItTrainsAllTheSame) {
  const CudaMachine machine("gpus=2");
  const ScopedVariable nowhere("XDG_CACHE_HOME", "/proc/no-such-place");
  const Finished run = RunStagecoach(SmallRun({"--device", "cuda"}));
  EXPECT_EQ(run.exit_status, 0);
  ExpectOneLine(run.err, AllOf(HasSubstr("no place for a tuning file"), HasSubstr("--tuning")));
}

TEST(CudaTuning, ANamedFileNeedsAFolder) {
  const CudaMachine machine("gpus=2");
  ExpectFailure({"--device", "cuda", "--tuning", "/no/such/place/tuning.json"}, kStatusCannotWrite,
                AllOf(HasSubstr("--tuning: "), HasSubstr("/no/such/place")));
}

TEST(CudaTuning, ADamagedFileIsNamed) {
  const CudaMachine machine("gpus=2");
  const std::string path = engine::WriteTestFile(TestDirectory(), "tuning.json", "{]");
  const Finished run = RunStagecoach(SmallRun({"--device", "cuda", "--tuning", path}));
  EXPECT_EQ(run.exit_status, kStatusBadData);
  EXPECT_THAT(run.err, AllOf(HasSubstr(path), HasSubstr("remove it, or name another")));
}

// ---- Other commands.

TEST(CudaPlan, IsMadeForTheDevicesAsked) {
  const CudaMachine machine("gpus=2");
  // The choice includes how they will exchange tensors; where some of them are is not known.
  const auto transfers_of = [](const Arguments& flags) {
    Arguments plan = {"plan",
                      "--data",
                      "synthetic:256x16x4",
                      "--layers",
                      "3",
                      "--width",
                      "16",
                      "--global-batch-size",
                      "32",
                      "--devices",
                      "3",
                      "--device",
                      "cuda",
                      "--json"};
    plan.insert(plan.end(), flags.begin(), flags.end());
    const Finished run = RunStagecoach(plan);
    EXPECT_EQ(run.exit_status, 0) << run.err;
    const nlohmann::json evaluation = run.Events().at(0);
    return evaluation["transfers"].get<std::string>();
  };
  EXPECT_EQ(transfers_of({}), "grouped");
  EXPECT_EQ(transfers_of({"--gpus", "1"}), "grouped");
  EXPECT_EQ(transfers_of({"--gpus", "0,1,0"}), "separate");
  EXPECT_EQ(transfers_of({"--exchange", "copies"}), "separate");
}

TEST(CudaPlan, OfAutoIsForGpusWhereThereIsOneAndSaysThatARunNeedsMore) {
  const CudaMachine machine("gpus=1");
  const auto plan_for = [](const char* devices) {
    return RunStagecoach({"plan", "--data", "synthetic:256x16x4", "--layers", "4", "--width", "16",
                          "--devices", devices, "--device", "auto", "--json"});
  };
  const Finished many = plan_for("4");
  EXPECT_EQ(many.exit_status, 0);
  EXPECT_EQ(many.Events().at(0)["transfers"], "grouped");
  EXPECT_THAT(many.err, AllOf(HasSubstr("--device auto: a plan for CUDA devices, though a run"),
                              HasSubstr("there is 1 GPU")));
  EXPECT_EQ(plan_for("1").err, "");
}

TEST(CudaProfile, IsMeasuredOnTheGpu) {
  const CudaMachine machine("gpus=1");
  const Finished run = RunStagecoach({"profile", "--data", "synthetic:256x16x4", "--layers", "3",
                                      "--width", "16", "--rows", "8", "--device", "cuda"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
}

TEST(CudaBench, ComparesWithWhatTheGpusCanDo) {
  const CudaMachine machine("gpus=2");
  for (const char* gpus : {"0,1", "1,1"}) {
    const Finished run = RunStagecoach({"bench",     "--device",
                                        "cuda",      "--gpus",
                                        gpus,        "--devices",
                                        "2",         "--precision",
                                        "fp32,bf16", "--layers",
                                        "4",         "--width",
                                        "16",        "--global-batch-size",
                                        "16",        "--repeats",
                                        "1",         "--no-prediction",
                                        "--output",  "json"});
    ASSERT_EQ(run.exit_status, 0) << run.err;
    const nlohmann::json rows = run.Events().at(0)["rows"];
    ASSERT_THAT(rows, SizeIs(2));
    for (const nlohmann::json& row : rows) {
      EXPECT_FALSE(row.contains("error")) << row;
      EXPECT_GT(row["peak_flops_per_second"], 0);
    }
  }
}

}  // namespace
}  // namespace stagecoach::tools
