// Training in one process per CPU device, over TCP.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/launch/launched_run.h"

namespace stagecoach::tools {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Four gradient blocks make one, two or four replicas compute the same bits.
Arguments OnCpu(const Arguments& more) {
  return Joined({"train", "--data", "synthetic:256x16x4", "--layers", "4", "--width", "16",
                 "--global-batch-size", "64", "--micro-batches", "8", "--epochs", "2",
                 "--gradient-blocks", "4", "--json"},
                more);
}

struct Mesh {
  int stages;
  int replicas;
  Arguments more = {};
  Arguments of_both = {};  // also of the device with which they are compared
};

class CpuProcesses : public ::testing::TestWithParam<Mesh> {};

TEST_P(CpuProcesses, GiveTheAnswerOfOneDevice) {
  const auto& [stages, replicas, more, of_both] = GetParam();
  const Arguments mesh =
      Joined({"--stages", absl::StrCat(stages), "--replicas", absl::StrCat(replicas)}, more);
  const Finished launched =
      RunStagecoach(Joined({"launch", "--processes", absl::StrCat(stages * replicas), "--"},
                           OnCpu(Joined(Joined(mesh, of_both), Deadline()))));
  ASSERT_EQ(launched.exit_status, 0) << launched.err;
  const Finished one = RunStagecoach(OnCpu(Joined({"--stages", "1"}, of_both)));
  ASSERT_EQ(one.exit_status, 0) << one.err;
  const nlohmann::json end = launched.Events().back(), expected = one.Events().back();
  for (const char* name : {"steps", "step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(end[name], expected[name]) << name;
  }
  ASSERT_EQ(end["devices"].size(), static_cast<size_t>(stages * replicas));
  for (const nlohmann::json& device : end["devices"]) {
    EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
    EXPECT_EQ(device["measured_sent_bytes"], device["predicted_sent_bytes"]);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, CpuProcesses,
    ::testing::Values(Mesh{4, 1}, Mesh{1, 4}, Mesh{2, 2, {}, {"--clip-norm", "0.05"}},
                      Mesh{1,
                           3,
                           {},
                           {"--gradient-blocks=3", "--micro-batches=6", "--global-batch-size=60",
                            "--clip-norm=0.05"}},
                      Mesh{1,
                           2,
                           {"--shard-optimizer"},
                           {"--gradient-blocks=6", "--micro-batches=6", "--global-batch-size=60"}},
                      // Gloo's sum of two addends is the same as ours.
                      Mesh{2, 4, {"--shard-optimizer"}}, Mesh{2, 2, {"--reduction", "ring"}},
                      Mesh{2, 2, {"--schedule", "zb-v"}}),
    [](const ::testing::TestParamInfo<Mesh>& tested) {
      const std::string more = absl::StrJoin(Joined(tested.param.more, tested.param.of_both), "_");
      return absl::StrCat("Stages", tested.param.stages, "Replicas", tested.param.replicas,
                          absl::StrReplaceAll(more, {{"-", ""}, {".", ""}, {"=", ""}}));
    });

// tests/soak/faults.py covers faults in other places.
class FaultOfOneOfFour : public ::testing::Test {
 protected:
  // Starts four processes; each has a stage, and they train forever.
  static std::vector<std::unique_ptr<Child>> StartFour(const Arguments& deadline) {
    std::vector<std::unique_ptr<Child>> children =
        Start(4, At(4, TcpPlace()),
              Same(Joined(OnCpu({"--stages", "4", "--epochs", "1000000"}), deadline)));
    EXPECT_TRUE(children[0]->WaitForOutput("\"event\":\"epoch\""));
    return children;
  }
  static void ExpectErrorsOfOthers(const std::vector<std::unique_ptr<Child>>& children,
                                   const std::string& regex) {
    for (size_t rank = 0; rank < children.size(); ++rank) {
      if (rank == kVictim) continue;
      ExpectError(children[rank]->Wait(), kStatusTryAgain, ContainsRegex(regex));
    }
  }
  static constexpr size_t kVictim = 2;
};

TEST_F(FaultOfOneOfFour, IsToldIfItIsKilled) {
  const auto children = StartFour(Deadline());
  children[kVictim]->Signal(SIGKILL);
  ExpectErrorsOfOthers(children, "rank 2 was killed|rank 2 is gone");
}

// Rank 0 waits for rank 1, which itself waits for the one that is stopped.
TEST_F(FaultOfOneOfFour, IsToldAtTheDeadlineIfItIsStopped) {
  const auto children = StartFour({"--timeout", "2"});
  children[kVictim]->Signal(SIGSTOP);
  ASSERT_TRUE(children[kVictim]->WaitUntilStopped());
  ExpectErrorsOfOthers(
      children,
      "rank 2 \\(stage 2, replica 0\\) timed out: rank [013], .* timed out waiting "
      "for rank .*; rank 2 was last seen in |rank 2 of 4 did not arrive in time");
}

TEST(CpuProcessesThatAreSaved, GoOnAsOtherProcessesAfterOneWasKilled) {
  const stagecoach::testing::TestFolder folder;
  const Arguments saved = {"--checkpoint", (folder.path() / "run").string()};
  const Arguments run = {"--epochs", "30"};
  const Finished whole = RunStagecoach(OnCpu(Joined(run, {"--stages", "1"})));
  const auto children =
      Start(4, At(4, TcpPlace()),
            Same(Joined(OnCpu(Joined(run, saved)),
                        Joined({"--stages", "4", "--checkpoint-every", "1"}, Deadline()))));
  ASSERT_TRUE(children[0]->WaitForOutput("\"event\":\"epoch\",\"epoch\":2"));
  children[2]->Signal(SIGKILL);
  for (const std::unique_ptr<Child>& child : children) child->Wait();
  const Finished resumed =
      RunStagecoach(Joined({"launch", "--processes", "4", "--", "train", "--json", "--resume",
                            "--stages", "2", "--replicas", "2", "--shard-optimizer"},
                           saved));
  ASSERT_EQ(resumed.exit_status, 0) << resumed.err;
  EXPECT_EQ(resumed.Events()[1]["event"], "resumed");
  EXPECT_GE(resumed.Events()[1]["step"], 4);
  const nlohmann::json end = resumed.Events().back(), expected = whole.Events().back();
  for (const char* name : {"steps", "step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(end[name], expected[name]) << name;
  }
}

struct StopOfLaunch {
  std::string name;
  std::string signal;  // that rank 1 sends to itself; "": closes the output of launch
  int status;
};
class LaunchThatIsStopped : public ::testing::TestWithParam<StopOfLaunch> {};

// Whichever process is stopped in whatever way, all save the run and exit with that status.
TEST_P(LaunchThatIsStopped, SavesTheRun) {
  const stagecoach::testing::TestFolder folder;
  const std::string run = (folder.path() / "run").string();
  const std::string signal =
      GetParam().signal.empty()
          ? ""
          : absl::StrCat("[ $RANK != 1 ] || (until [ -e ", run,
                         "/go ]; do sleep 0.05; done; kill -", GetParam().signal, " $$) & ");
  Child launch(
      {"launch", "--processes", "2", "--", "sh", "-c",
       absl::StrCat(signal, "exec ", ProgramPath(), " ",
                    absl::StrJoin(OnCpu({"--stages", "2", "--epochs", "1000000", "--checkpoint",
                                         run, "--checkpoint-every", "1000000"}),
                                  " "))});
  ASSERT_TRUE(launch.WaitForOutput("\"event\":\"epoch\""));
  if (GetParam().signal.empty()) launch.CloseOutput();
  std::ofstream(run + "/go") << "";
  EXPECT_EQ(launch.Wait().exit_status, GetParam().status);
  const Finished saved = RunStagecoach({"checkpoint", "inspect", run});
  EXPECT_EQ(saved.exit_status, 0) << saved.err;
}

INSTANTIATE_TEST_SUITE_P(By, LaunchThatIsStopped,
                         ::testing::Values(StopOfLaunch{"TermOfOneRank", "TERM", kTerminated},
                                           StopOfLaunch{"HangUpOfOneRank", "HUP", kHungUp},
                                           StopOfLaunch{"AClosedPipe", "", kBrokenPipe}),
                         [](const ::testing::TestParamInfo<StopOfLaunch>& tested) {
                           return tested.param.name;
                         });

// The processes are killed, stopped, and in the end run on fewer devices than at the beginning.
TEST(CpuProcessesThatAreLookedAfter, EndWithTheBitsOfARunThatWasLeftAlone) {
  const stagecoach::testing::TestFolder folder;
  const Arguments run = OnCpu({"--epochs", "40"});
  const nlohmann::json expected = RunStagecoach(Joined(run, {"--stages", "1"})).Events().back();
  // The first start loses rank 1, the second is stopped, and in the third rank 3 has no device.
  const std::string script = absl::StrCat(
      "case $STAGECOACH_RESTARTS.$RANK in "
      "0.1) (sleep 0.4; kill -9 $$) & ;; 1.2) (sleep 0.4; kill -STOP $$) & ;; 2.3) exit 69 ;; "
      "esac; "
      "exec ",
      absl::StrJoin(Joined({ProgramPath()}, run), " "),
      " --stages 4 --checkpoint-every 1 --resume --checkpoint ", (folder.path() / "run").string());
  const Finished supervised = RunStagecoach({"launch", "--processes", "4", "--max-restarts", "9",
                                             "--silence", "0.5", "--", "sh", "-c", script});
  EXPECT_EQ(supervised.exit_status, 0) << supervised.err;
  EXPECT_THAT(supervised.err,
              AllOf(HasSubstr("rank 1 was killed by signal 9 (Killed); starts all again (1 of 9)"),
                    HasSubstr("rank 2 was stopped for too long and was killed; starts all again"),
                    HasSubstr("rank 3 ended with status 69; starts 3 of them again (3 of 9)"),
                    HasSubstr("continues on the 3 devices that are left: 3 stages, 1 replica")));
  const std::vector<std::string> lines = supervised.OutLines();
  const nlohmann::json end = nlohmann::json::parse(lines.back());
  for (const char* name : {"steps", "step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(end[name], expected[name]) << name;
  }
}

TEST(CpuProcessesThatAreLookedAfter, KeepTheMemoryOfTheDevicesThatAreLeft) {
  const stagecoach::testing::TestFolder folder;
  const std::string cluster = (folder.path() / "cluster.toml").string();
  std::ofstream(cluster) << "version = 1\n[[group]]\ndevices = 2\n"
                            "[[group]]\nname = \"small\"\ndevices = 1\nmemory = \"20kB\"\n";
  const Arguments run = OnCpu({"--cluster", cluster});
  const nlohmann::json expected = RunStagecoach(run).Events().back();
  const std::string script =
      absl::StrCat("[ $STAGECOACH_RESTARTS.$RANK != 0.0 ] || exit 69; exec ",
                   absl::StrJoin(Joined({ProgramPath()}, run), " "), " --resume --checkpoint ",
                   (folder.path() / "run").string());
  const Finished supervised = RunStagecoach(
      {"launch", "--processes", "3", "--max-restarts", "1", "--", "sh", "-c", script});
  ASSERT_EQ(supervised.exit_status, 0) << supervised.err;
  const std::vector<nlohmann::json> events = supervised.Events();
  const nlohmann::json& devices = events.back()["devices"];
  ASSERT_EQ(devices.size(), 2u);
  EXPECT_GT(devices[0]["measured_peak_bytes"], 20'000);
  EXPECT_LE(devices[1]["measured_peak_bytes"], 20'000);
  for (const char* name : {"steps", "step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(events.back()[name], expected[name]) << name;
  }
}

// A plan or a schedule from a file is for as many devices as it was made for.
TEST(CpuProcessesThatAreLookedAfter, GoOnWithoutADeviceOfAPlanThatWasGiven) {
  const stagecoach::testing::TestFolder folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  const Arguments run = {"train", "--data", "synthetic:256x16x4", "--layers", "4", "--width",
                         "16",    "--json"};
  const Arguments batch = {"--global-batch-size", "64", "--micro-batches", "8"};
  ASSERT_EQ(RunStagecoach(
                Joined({"plan", "--data", "synthetic:256x16x4", "--layers", "4", "--width", "16",
                        "--devices", "4", "--schedule", "zb-h1", "--save", path("plan.json")},
                       batch))
                .exit_status,
            0);
  ASSERT_EQ(RunStagecoach({"simulate", "--schedule", "zb-h1", "--stages", "4", "--micro-batches",
                           "8", "--save", path("schedule.csv")})
                .exit_status,
            0);
  struct Given {
    Arguments arguments;
    int devices;
    std::string left;
  };
  for (const auto& [given, devices, left] :
       {Given{{"--plan", path("plan.json")}, 4, "3 devices that are left: 3 stages, 1 replica"},
        Given{Joined({"--schedule", path("schedule.csv")}, batch), 4,
              "3 devices that are left: 3 stages, 1 replica"},
        // Two replicas have three of the six blocks each, if not all are left to one.
        Given{{"--replicas=3", "--stages=1", "--gradient-blocks=6", "--micro-batches=6",
               "--global-batch-size=60"},
              3,
              "2 devices that are left: "}}) {
    SCOPED_TRACE(given.front());
    const nlohmann::json expected = RunStagecoach(Joined(run, given)).Events().back();
    const std::string script =
        absl::StrCat("[ $STAGECOACH_RESTARTS.$RANK != 0.", devices - 1, " ] || exit 69; exec ",
                     absl::StrJoin(Joined(Joined({ProgramPath()}, run), given), " "),
                     " --resume --checkpoint ", path(given.front()));
    const Finished supervised = RunStagecoach({"launch", "--processes", absl::StrCat(devices),
                                               "--max-restarts", "9", "--", "sh", "-c", script});
    ASSERT_EQ(supervised.exit_status, 0) << supervised.err;
    EXPECT_THAT(supervised.err, HasSubstr(absl::StrCat("continues on the ", left)));
    const nlohmann::json end = supervised.Events().back();
    for (const char* name : {"steps", "step_losses_hash", "parameters_hash"}) {
      EXPECT_EQ(end[name], expected[name]) << name;
    }
  }
}

TEST(CpuProcessesThatPredict, GiveTheBitsOfOneProcessAndWriteOneFile) {
  const stagecoach::testing::TestFolder folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  const Arguments predict = {"predict", "--json", "--checkpoint", path("run")};
  ASSERT_EQ(RunStagecoach(OnCpu({"--stages", "2", "--checkpoint", path("run")})).exit_status, 0);
  const Finished one = RunStagecoach(Joined(predict, {"--outputs", path("one.csv")}));
  ASSERT_EQ(one.exit_status, 0) << one.err;
  for (const Arguments& split :
       std::vector<Arguments>{{}, {"--stages", "2", "--replicas", "2"}, {"--replicas", "4"}}) {
    const Finished four =
        RunStagecoach(Joined(Joined({"launch", "--processes", "4", "--"}, predict),
                             Joined(split, {"--outputs", path("four.csv")})));
    ASSERT_EQ(four.exit_status, 0) << four.err;
    const nlohmann::json end = four.Events().back(), expected = one.Events().back();
    for (const char* name : {"outputs_hash", "loss", "correct", "confusion"}) {
      EXPECT_EQ(end[name], expected[name]) << name;
    }
    for (const nlohmann::json& device : end["devices"]) {
      EXPECT_EQ(device["measured_peak_bytes"], device["predicted_peak_bytes"]);
    }
    std::ostringstream texts[2];
    texts[0] << std::ifstream(path("one.csv")).rdbuf();
    texts[1] << std::ifstream(path("four.csv")).rdbuf();
    EXPECT_EQ(texts[0].str(), texts[1].str());
    EXPECT_GT(texts[0].str().size(), 100U);
  }
  const Finished refused = RunStagecoach(
      Joined(Joined({"launch", "--processes", "2", "--"}, predict), {"--stages", "3"}));
  EXPECT_EQ(refused.exit_status, kStatusBadConfiguration);
  EXPECT_THAT(refused.err,
              HasSubstr("stagecoach launch --processes 2 has started 2 processes for 3 devices"));
}

TEST(CpuProcessesThatDiffer, AreRefusedByAll) {
  const std::vector<Finished> all = Launch(2, At(2, TcpPlace()), [](int rank) {
    return OnCpu({"--stages", "1", "--replicas", "2", "--seed", absl::StrCat(rank)});
  });
  for (const Finished& process : all) {
    ExpectError(
        process, kStatusBadConfiguration,
        HasSubstr("rank 1 does not train the same as rank 0: it has seed: 1, rank 0 has seed: 0;"));
  }
}

// Each host has a folder of its own.
TEST(InitialParameters, AreComparedAmongProcesses) {
  const stagecoach::testing::TestFolder folder;
  const auto path = [&](const std::string& name) { return (folder.path() / name).string(); };
  std::ofstream text(path("book.txt"));
  for (int i = 0; i < 400; ++i) text << "to be or not to be, " << i << "; ";
  text.close();
  const auto train = [&](const Arguments& more) {
    return Joined({"train", "--data", path("book.txt"), "--train-samples", "32",
                   "--global-batch-size", "16", "--epochs", "1", "--stages", "2"},
                  Joined(more, Deadline()));
  };
  const Finished made =
      RunStagecoach(train({"--model", "gpt2:blocks=1,width=16,heads=2,context=16,vocabulary=256",
                           "--checkpoint", path("run")}));
  ASSERT_EQ(made.exit_status, 0) << made.err;
  const Finished exported = RunStagecoach(
      {"checkpoint", "export", path("run"), "--format", "hf", "--output", path("rank0")});
  ASSERT_EQ(exported.exit_status, 0) << exported.err;
  std::filesystem::copy(path("rank0"), path("rank1"));
  const auto launch = [&] {
    return Launch(2, At(2, TcpPlace()), [&](int rank) {
      return train({"--init", path(absl::StrCat("rank", rank))});
    });
  };
  ExpectSuccess(launch());

  const auto expect_refused = [&](const std::string& what) {
    for (const Finished& process : launch()) {
      ExpectError(process, kStatusBadConfiguration,
                  HasSubstr("rank 1 does not train the same as rank 0: " + what));
    }
  };
  const std::string weights = "/model.safetensors";
  std::fstream file(path("rank1" + weights), std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-4, std::ios::end);  // the lowest bits of the last number
  const auto lowest = static_cast<char>(file.get() ^ 1);
  file.seekp(-4, std::ios::end);
  file.put(lowest);
  file.close();
  expect_refused("it has initial parameters: ");
  std::filesystem::copy_file(path("rank0" + weights), path("rank1" + weights),
                             std::filesystem::copy_options::overwrite_existing);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(path("rank1/config.json")));
  config["layer_norm_epsilon"] = 1e-4;
  std::ofstream(path("rank1/config.json")) << config;
  expect_refused("it has initial config.json: ");
}

}  // namespace
}  // namespace stagecoach::tools
