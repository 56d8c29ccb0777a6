#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/data/data_test_util.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Finished RunPlan(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {
      "plan", "--data", "synthetic:100x16x4", "--global-batch-size", "32", "--micro-batches", "4"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunStagecoach(arguments);
}

nlohmann::json PlanOf(std::vector<std::string> more) {
  more.push_back("--json");
  const Finished run = RunPlan(more);
  EXPECT_EQ(run.exit_status, 0) << run.err;
  EXPECT_THAT(run.Events(), SizeIs(1));
  return run.Events().at(0);
}

const std::vector<std::string> kSmall = {"--layers", "8", "--width", "16"};

TEST(Plan, EndsWhenItsTimeIsOver) {
  const Finished none = RunPlan({"--time-limit", "1e-9"});
  EXPECT_EQ(none.exit_status, 75);
  EXPECT_THAT(none.err, HasSubstr("before a plan was found"));
  const Finished never = RunPlan({"--time-limit", "0"});
  EXPECT_EQ(never.exit_status, 2);
  EXPECT_THAT(never.err, HasSubstr("--time-limit"));
  EXPECT_FALSE(PlanOf(kSmall)["cut_short"].get<bool>());
}

TEST(Plan, CoversTheLayersInOrder) {
  const nlohmann::json plan = PlanOf(kSmall);
  EXPECT_EQ(plan["micro_batches"], 4);
  EXPECT_EQ(plan["micro_batch_rows"], 8);
  int next_layer = 0;
  for (const nlohmann::json& stage : plan["stages"]) {
    EXPECT_EQ(stage["first_layer"], next_layer);
    next_layer = stage["last_layer"].get<int>() + 1;
  }
  EXPECT_EQ(next_layer, 8);
  EXPECT_GT(plan["objective_ms"], 0.0);
  EXPECT_LE(plan["lower_bound_ms"], plan["objective_ms"]);
  EXPECT_GT(plan["planning_ms"], 0.0);
}

TEST(Plan, PartsOfMemoryAddUpToThePeak) {
  const nlohmann::json plan = PlanOf(kSmall);
  for (const nlohmann::json& stage : plan["stages"]) {
    nlohmann::json memory = stage["memory_bytes"];
    const int64_t peak_bytes = memory["peak"];
    int64_t sum = 0;
    for (const char* part : {"parameters", "gradients", "optimizer", "stash", "buffers"}) {
      sum += memory[part].get<int64_t>();
    }
    EXPECT_EQ(sum, peak_bytes);
  }
}

int64_t LargestPeak(const nlohmann::json& plan) {
  int64_t largest = 0;
  for (const nlohmann::json& stage : plan["stages"]) {
    largest = std::max(largest, stage["memory_bytes"]["peak"].get<int64_t>());
  }
  return largest;
}

TEST(Plan, HoldsTheMemoryBudget) {
  std::vector<std::string> arguments = {"--layers", "9", "--width", "64", "--devices", "3"};
  const int64_t free_bytes = LargestPeak(PlanOf(arguments));
  arguments.insert(arguments.end(), {"--device-memory", std::to_string(free_bytes - 1)});
  EXPECT_LT(LargestPeak(PlanOf(arguments)), free_bytes);
}

TEST(Plan, SaysWhatDoesNotFitAndWhatWould) {
  const Finished run = RunPlan({"--layers", "9", "--width", "64", "--device-memory", "10kB"});
  EXPECT_EQ(run.exit_status, 78);
  EXPECT_THAT(run.err, AllOf(HasSubstr("the model does not fit"), HasSubstr("it would fit with"),
                             HasSubstr("more memory on each device")));
}

// Messages between the hosts take longer than all layers.
TEST(Plan, LeavesDevicesOutUnlessAllAreAskedFor) {
  const std::string cluster = engine::WriteTestFile(
      engine::TestDirectory(), "slow_links.toml",
      "version = 1\n[[group]]\nname = \"a\"\nhosts = 2\ndevices_per_host = 2\n[links]\n"
      "between_hosts = {latency_us = 1e6, gigabytes_per_second = 1}\n");
  const std::vector<std::string> arguments = {"--layers",  "8",     "--width",    "32",
                                              "--cluster", cluster, "--schedule", "1f1b"};
  const nlohmann::json some = PlanOf(arguments);
  EXPECT_THAT(some["left_out"].get<std::vector<std::string>>(),
              ::testing::ElementsAre("a.2", "a.3"));
  EXPECT_EQ(some["stages"].size(), 2u);
  std::vector<std::string> all_arguments = arguments;
  all_arguments.push_back("--all-devices");
  const nlohmann::json all = PlanOf(all_arguments);
  EXPECT_FALSE(all.contains("left_out"));
  EXPECT_EQ(all["stages"].size(), 4u);
  EXPECT_LT(some["objective_ms"], all["objective_ms"]);
}

TEST(Plan, MeasuresLayersOnRequest) {
  EXPECT_EQ(PlanOf({"--layers", "8", "--width", "16", "--profile", "measured"})["stages"]
                .back()["last_layer"],
            7);
}

// The process is stopped meanwhile, so that it takes long enough on any machine.
TEST(Plan, SaysThatItMeasures) {
  Child child({"plan", "--data", "synthetic:256x32x4", "--layers", "4", "--width", "1024",
               "--stages", "2", "--micro-batches", "4", "--profile", "measured"});
  absl::SleepFor(absl::Milliseconds(200));
  child.Signal(SIGSTOP);
  ASSERT_TRUE(child.WaitUntilStopped());
  absl::SleepFor(absl::Milliseconds(1500));
  child.Signal(SIGCONT);
  const Finished run = child.Wait();
  EXPECT_EQ(run.exit_status, 0);
  EXPECT_EQ(run.err, "stagecoach: measures the layers, with micro-batches of 32 rows\n");
}

TEST(Plan, ReadsTheModelFromAFile) {
  const std::string path = engine::WriteTestFile(engine::TestDirectory(), "m.toml",
                                                 "[[layer]]\ntype = \"layer_norm\"\nrepeat = 3\n"
                                                 "[[layer]]\ntype = \"linear\"\n"
                                                 "outputs = \"classes\"\n");
  EXPECT_EQ(PlanOf({"--model", path})["stages"].back()["last_layer"], 3);
}

TEST(Plan, OfAModelOfTokensNeedsNoData) {
  const std::string model = "gpt2:blocks=2,width=16,heads=2,context=8,vocabulary=50";
  const Finished run = RunStagecoach(
      {"plan", "--model", model, "--devices", "2", "--global-batch-size", "4", "--json"});
  EXPECT_EQ(run.exit_status, 0) << run.err;
  const std::string text =
      engine::WriteTestFile(engine::TestDirectory(), "a.txt", std::string(400, 'x'));
  const auto layers = [](const Finished& planned) {
    EXPECT_EQ(planned.exit_status, 0) << planned.err;
    return planned.Events().at(0)["stages"];
  };
  // The options match data of that context and vocabulary.
  const Arguments of_text = {
      "plan",   "--model",   model, "--devices",    "2",  "--global-batch-size", "4",
      "--json", "--context", "6",   "--vocabulary", "256"};
  EXPECT_EQ(layers(RunStagecoach(of_text)),
            layers(RunStagecoach(Joined(of_text, {"--data", text}))));
  EXPECT_NE(layers(RunStagecoach(of_text)), layers(run));

  const std::string file = engine::WriteTestFile(
      engine::TestDirectory(), "tokens.toml",
      "context = 8\n\n[[layer]]\ntype = \"embedding\"\nvocabulary = \"classes\"\nfeatures = 4\n\n"
      "[[layer]]\ntype = \"linear\"\noutputs = \"classes\"\n");
  const Finished unknown = RunStagecoach({"plan", "--model", file, "--devices", "2"});
  EXPECT_EQ(unknown.exit_status, kStatusUsage);
  EXPECT_THAT(unknown.err, AllOf(HasSubstr("--data"), HasSubstr("--vocabulary")));
  for (const char* command : {"plan", "profile"}) {
    Arguments with = {command, "--model", file, "--vocabulary", "9"};
    const bool plans = with.front() == "plan";
    with = Joined(with, plans ? Arguments{"--devices", "2"} : Arguments{"--analytic"});
    const Finished known = RunStagecoach(with);
    EXPECT_EQ(known.exit_status, 0) << known.err;
  }
}

TEST(Plan, DrawsTheStepAsItIsSimulated) {
  const Finished run = RunPlan(kSmall);
  EXPECT_THAT(run.out, AllOf(HasSubstr("\nrank 0 |F"), HasSubstr("\nrank 3 |."),
                             HasSubstr("lower bound"), HasSubstr("planned in")));
  EXPECT_THAT(run.err, IsEmpty());
}

TEST(Plan, TakesEverySchedule) {
  for (const char* schedule : {"gpipe", "interleaved", "looped-bfs", "zb-h1", "zb-h2", "zb-v",
                               "v-half", "v-min", "dualpipe-v"}) {
    std::vector<std::string> arguments = kSmall;
    arguments.insert(arguments.end(), {"--stages", "2", "--schedule", schedule});
    EXPECT_EQ(PlanOf(arguments)["schedule"], schedule);
  }
}

TEST(Plan, ChunksAreStagesOfEachDevice) {
  std::vector<std::string> arguments = kSmall;
  arguments.insert(arguments.end(),
                   {"--stages", "2", "--schedule", "interleaved", "--chunks", "4"});
  EXPECT_THAT(PlanOf(arguments)["stages"], SizeIs(8));
}

TEST(Plan, ChoosesTheNumberOfMicroBatches) {
  const Finished run = RunStagecoach({"plan", "--data", "synthetic:100x16x4", "--global-batch-size",
                                      "24", "--layers", "8", "--width", "512", "--json"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const nlohmann::json plan = run.Events().at(0);
  EXPECT_EQ(plan["micro_batches"].get<int>() * plan["micro_batch_rows"].get<int>(), 24);
  EXPECT_GT(plan["micro_batches"], 1);
  EXPECT_GT(plan["considered"], 5);
}

// Plans from a file, which needs no model; the file is one of PipeDream's.
Finished PlanVgg16(const std::vector<std::string>& more) {
  std::vector<std::string> arguments = {"plan", "--profile",
                                        STAGECOACH_PARTITION_TEST_DATA "/pipedream/vgg16.txt"};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return RunStagecoach(arguments);
}

TEST(Plan, ReadsAProfileInPlaceOfAModel) {
  const Finished run = PlanVgg16({"--devices", "4", "--micro-batches", "8", "--schedule", "1f1b",
                                  "--objective", "bottleneck", "--json"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const nlohmann::json plan = run.Events().at(0);
  // The published optimum for four stages is 216.450 ms; there are eight micro-batches.
  EXPECT_NEAR(plan["objective_ms"].get<double>(), 8 * 216.450, 1e-6);
  EXPECT_EQ(plan["gap"], 0.0);
  EXPECT_EQ(plan["stages"].back()["last_layer"], 39);
}

// The first message in each direction delays the step, unless a cluster says how fast messages are.
TEST(Plan, TakesTheTimeOfMessagesFromTheProfile) {
  const testing::TestFolder folder;
  const auto step_ms = [&](const std::string& message_ms, const std::vector<std::string>& more) {
    const std::string profile = folder.path() / "profile.json";
    EXPECT_OK(base::WriteFileAtomically(
        profile, absl::StrCat(R"({"format": "stagecoach-profile", "version": 1, "message_ms": )",
                              message_ms, R"(, "layers": [
        {"name": "a", "forward_ms": 1, "backward_ms": 2, "output_bytes": 64},
        {"name": "b", "forward_ms": 1, "backward_ms": 2}]})")));
    std::vector<std::string> arguments = {"plan", "--profile", profile, "--schedule", "1f1b"};
    arguments.insert(arguments.end(), {"--micro-batches", "4", "--json"});
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Finished run = RunStagecoach(arguments);
    EXPECT_EQ(run.exit_status, 0) << run.err;
    return run.Events().at(0)["objective_ms"].get<double>();
  };
  const std::string cluster = folder.path() / "cluster.toml";
  EXPECT_OK(base::WriteFileAtomically(
      cluster, "version = 1\n[[group]]\nname = \"g\"\nhosts = 1\ndevices_per_host = 2\n"));
  const std::vector<std::string> two = {"--devices", "2", "--all-devices"};
  EXPECT_NEAR(step_ms("0", two), 15.0, 1e-9);
  EXPECT_GE(step_ms("0.5", two), 16.0);
  EXPECT_NEAR(step_ms("0.5", {"--cluster", cluster, "--all-devices"}), 15.0, 1e-9);
}

TEST(Plan, OfAProfileIsForTransfersInGroupsWithNccl) {
  const auto transfers_of = [](const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"--devices", "4", "--schedule", "1f1b", "--json"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished run = PlanVgg16(arguments);
    EXPECT_EQ(run.exit_status, 0) << run.err;
    const nlohmann::json plan = run.Events().at(0);
    return plan["transfers"].get<std::string>();
  };
  EXPECT_EQ(transfers_of({}), "separate");
  EXPECT_EQ(transfers_of({"--exchange", "copies"}), "separate");
  EXPECT_EQ(transfers_of({"--exchange", "nccl"}), "grouped");
}

TEST(Plan, ComparesHeuristicsAndPlans) {
  const std::string directory = engine::TestDirectory();
  const std::string path = directory + "/compared.json", page = directory + "/compared.html";
  const std::vector<std::string> base = {"--devices",       "4", "--schedule", "1f1b",
                                         "--micro-batches", "8"};
  std::vector<std::string> save = base;
  save.insert(save.end(), {"--save", path});
  ASSERT_EQ(PlanVgg16(save).exit_status, 0);
  std::vector<std::string> compare = base;
  compare.insert(compare.end(), {"--compare", "uniform,parameters," + path, "--json"});
  compare.insert(compare.begin(), {"--html", page});
  const Finished run = PlanVgg16(compare);
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const nlohmann::json plan = run.Events().at(0);
  ASSERT_THAT(plan["compared"], SizeIs(3));
  EXPECT_GT(plan["compared"][0]["objective_ms"], plan["objective_ms"]);
  EXPECT_GT(plan["compared"][1]["objective_ms"], plan["objective_ms"]);
  EXPECT_EQ(plan["compared"][2]["objective_ms"], plan["objective_ms"]);
  EXPECT_THAT(base::ReadFile(page, 1 << 24).value(), HasSubstr("Compared with other plans"));
  compare.pop_back();
  EXPECT_THAT(PlanVgg16(compare).out, AllOf(HasSubstr("this plan"), HasSubstr("uniform")));
}

TEST(Plan, WritesThePageAndWhatOtherProgramsRead) {
  const std::string directory = engine::TestDirectory();
  const Finished run = RunPlan({"--layers", "8", "--width", "16", "--schedule", "1f1b", "--html",
                                directory + "/plan.html", "--export",
                                "torch:" + directory + "/torch.json,torch-schedule:" + directory +
                                    "/torch.csv,deepspeed:" + directory + "/parts.json"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const auto read = [&](const char* name) {
    return base::ReadFile(directory + "/" + name, 1 << 24).value();
  };
  EXPECT_THAT(read("plan.html"), AllOf(HasSubstr("<html"), HasSubstr("1f1b")));
  EXPECT_THAT(read("torch.json"), HasSubstr("split_points"));
  EXPECT_THAT(read("torch.csv"), HasSubstr("0F0"));
  EXPECT_EQ(nlohmann::json::parse(read("parts.json")).size(), 5U);
  // No file is written then.
  const Finished own = RunPlan({"--layers", "8", "--save", directory + "/p.json", "--export",
                                "torch:" + directory + "/t.json,megatron:" + directory + "/m"});
  EXPECT_EQ(own.exit_status, kStatusBadConfiguration);
  ExpectOneLine(own.err, AllOf(HasSubstr("--export megatron: Megatron-LM has an embedding"),
                               HasSubstr("two layers for each block")));
  for (const char* name : {"/p.json", "/t.json", "/m"}) {
    EXPECT_FALSE(base::Exists(directory + name)) << name;
  }
}

TEST(Plan, RefusesADirectoryBeforeItPlans) {
  const std::string directory = engine::TestDirectory();
  for (const std::string& path : {directory, directory + "/", std::string(".")}) {
    for (const char* flag : {"--save", "--html"}) {
      const Finished run = RunPlan({flag, path});
      EXPECT_EQ(run.exit_status, kStatusCannotWrite);
      EXPECT_EQ(run.err, "stagecoach plan: " + path + " is a directory\n");
    }
  }
}

TEST(Plan, WhatItSavesIsWhatTrainPerforms) {
  const std::string path = engine::TestDirectory() + "/plan.json";
  const std::vector<std::string> model = {
      "--data", "synthetic:200x16x4", "--layers", "8", "--width", "16"};
  std::vector<std::string> plan = {
      "plan", "--global-batch-size", "24", "--devices", "3", "--save", path, "--json"};
  plan.insert(plan.end(), model.begin(), model.end());
  const Finished planned = RunStagecoach(plan);
  ASSERT_EQ(planned.exit_status, 0) << planned.err;
  std::vector<std::string> train = {"train", "--plan", path, "--epochs", "1", "--json"};
  train.insert(train.end(), model.begin(), model.end());
  const Finished trained = RunStagecoach(train);
  ASSERT_EQ(trained.exit_status, 0) << trained.err;
  const nlohmann::json evaluation = planned.Events().at(0);
  const nlohmann::json end = trained.Events().back();
  size_t compared = 0;
  for (const nlohmann::json& device : end["devices"]) {
    for (const nlohmann::json& stage : evaluation["stages"]) {
      if (stage["first_layer"] != device["stages"][0]["first_layer"]) continue;
      EXPECT_EQ(device["measured_peak_bytes"], stage["memory_bytes"]["peak"]);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 3U);
}

// Attention and tensor parallelism are chosen together with everything else. The link between hosts
// is so slow that a pipeline of four would wait for it as often as one of two.
TEST(Plan, ChoosesHowATransformerIsComputed) {
  const std::string directory = engine::TestDirectory();
  const std::string profile = engine::WriteTestFile(
      directory, "gpt.toml",
      "version = 1\nlayers = 4\nhidden = 256\nheads = 2\nsequence = 64\nvocabulary = 100\n"
      "micro_batch_rows = \"auto\"\nattention = [\"stored\", \"recomputed\"]\n"
      "tensor_parallel = \"auto\"\ndevice_teraflops = 1\n");
  const std::string cluster =
      engine::WriteTestFile(directory, "cluster.toml",
                            "version = 1\n[[group]]\nhosts = 2\ndevices_per_host = 2\n"
                            "[links]\nwithin_host = {gigabytes_per_second = 1000}\n"
                            "between_hosts = {gigabytes_per_second = 0.1}\n");
  const Finished run = RunStagecoach({"plan", "--profile", profile, "--cluster", cluster,
                                      "--global-batch-size", "16", "--schedule", "1f1b",
                                      "--recompute", "full", "--compare", "uniform", "--json"});
  ASSERT_EQ(run.exit_status, 0) << run.err;
  const nlohmann::json plan = run.Events().at(0);
  EXPECT_EQ(plan["option"], "stored attention, tensor parallelism 2");
  EXPECT_THAT(plan["stages"], SizeIs(2)) << "of pairs of devices";
  EXPECT_THAT(plan["recomputed_layers"], SizeIs(4));
  EXPECT_GT(plan["compared"][0]["objective_ms"], 0) << "for the same pairs";
}

TEST(Plan, RefusesBadInput) {
  const std::string directory = engine::TestDirectory();
  const auto file = [&](const char* name, const char* text) {
    return engine::WriteTestFile(directory, name, text);
  };
  const std::string misspelled = file("p.json",
                                      "{\"format\": \"stagecoach-profile\", \"version\": 1,\n"
                                      "\"layers\": [{\"name\": \"a\", \"forward_ms\": 1,\n"
                                      "\"backwards_ms\": 2}]}");
  Finished run = RunStagecoach({"plan", "--profile", misspelled});
  EXPECT_EQ(run.exit_status, 65);
  EXPECT_THAT(run.err, AllOf(HasSubstr("p.json:2:12: "), HasSubstr("backwards_ms"),
                             HasSubstr("backward_ms")));
  const std::string cluster = file("c.toml", "version = 1\n[[group]]\ndevices = 2\nspeed = -1\n");
  run = PlanVgg16({"--cluster", cluster});
  EXPECT_EQ(run.exit_status, 65);
  EXPECT_THAT(run.err, AllOf(HasSubstr("c.toml:4:1: "), HasSubstr("speed")));
  EXPECT_EQ(PlanVgg16({"--devices", "41"}).exit_status, 78);
  EXPECT_EQ(PlanVgg16({"--format", "pipedreams"}).exit_status, 2);
  run = PlanVgg16({"--layers", "5"});  // a flag of a model, which is not used here
  EXPECT_EQ(run.exit_status, 2);
  EXPECT_THAT(run.err, AllOf(HasSubstr("--layers"), HasSubstr("--profile")));
  EXPECT_EQ(PlanVgg16({"--compare", "best"}).exit_status, 2);
  EXPECT_EQ(RunStagecoach({"plan", "--profile", directory + "/none.txt"}).exit_status, 65);
  run = PlanVgg16({"--replicas", "3", "--devices", "6"});
  EXPECT_EQ(run.exit_status, 78);
  EXPECT_THAT(run.err, HasSubstr("3 replicas: must be a power of two"));
}

}  // namespace
}  // namespace stagecoach::tools
