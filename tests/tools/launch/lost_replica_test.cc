// The loss of a process of a run with replicas, on every kind of device.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/cuda_machine.h"

namespace stagecoach::tools {
namespace {

using ::testing::ContainsRegex;

struct Loss {
  std::string device;
  int rank;
  std::string signal;
  int epochs;
};

class LostReplica : public ::testing::TestWithParam<Loss> {};

// There is no checkpoint to resume from, except that of the first epoch.
TEST_P(LostReplica, IsReplacedWhileTheOthersGoOnWithTheSameBits) {
  const auto& [device, lost, signal, epochs] = GetParam();
  const CudaMachine machine("gpus=4");
  const stagecoach::testing::TestFolder folder;
  const std::string saved = (folder.path() / "run").string();
  const Arguments run = absl::StrSplit(
      absl::StrCat("train --json --device ", device, " --data synthetic:256x16x4 --layers 4 ",
                   "--width 16 --global-batch-size 64 --micro-batches 8 --gradient-blocks 4 "
                   "--clip-norm 0.05 ",
                   "--epochs ", epochs),
      ' ');
  const nlohmann::json expected = RunStagecoach(Joined(run, {"--stages", "1"})).Events().back();
  const std::string script = absl::StrCat(
      "echo start $RANK >&2; case $STAGECOACH_RESTARTS.$RANK in 0.", lost, ") (while [ ! -e ",
      saved, "/step-00000008 ]; do sleep 0.01; done; kill -", signal, " $$) & ;; esac; exec ",
      absl::StrJoin(Joined({ProgramPath()}, run), " "),
      " --stages 2 --replicas 2 --keep-checkpoints 1000 --checkpoint-every 1000 --resume "
      "--checkpoint ",
      saved);
  const Finished supervised = RunStagecoach({"launch", "--processes", "4", "--max-restarts", "9",
                                             "--silence", "0.3", "--", "sh", "-c", script});
  EXPECT_EQ(supervised.exit_status, 0) << supervised.err;
  EXPECT_THAT(supervised.err,
              ContainsRegex(absl::StrCat("rank ", lost, " was .*; starts it again \\(1 of 9\\)")));
  int starts = 0;
  for (size_t at = 0; (at = supervised.err.find("start ", at)) != std::string::npos; ++at) ++starts;
  EXPECT_EQ(starts, 5) << supervised.err;
  int64_t resumed_after = -1;
  for (const std::string& line : supervised.OutLines()) {
    const nlohmann::json event = nlohmann::json::parse(line.substr(line.find('{')));
    if (event["event"] == "resumed") {
      EXPECT_EQ(event["from"], "replicas");
      resumed_after = event["step"];
    }
  }
  EXPECT_GE(resumed_after, 8);
  const nlohmann::json end = supervised.Events().back();
  for (const char* name : {"steps", "step_losses_hash", "parameters_hash"}) {
    EXPECT_EQ(end[name], expected[name]) << name;
  }
  for (const nlohmann::json& each : end["devices"]) {
    EXPECT_EQ(each["measured_peak_bytes"], each["predicted_peak_bytes"]);
    EXPECT_EQ(each["measured_sent_bytes"], each["predicted_sent_bytes"]);
  }
}

INSTANTIATE_TEST_SUITE_P(OfFour, LostReplica,
                         ::testing::Values(Loss{"cpu", 0, "KILL", 40}, Loss{"cpu", 1, "KILL", 40},
                                           Loss{"cpu", 2, "KILL", 40}, Loss{"cpu", 3, "STOP", 40},
                                           Loss{"cuda", 0, "KILL", 8}, Loss{"cuda", 2, "STOP", 8}),
                         [](const ::testing::TestParamInfo<Loss>& tested) {
                           const Loss& loss = tested.param;
                           return absl::StrCat(loss.device, loss.rank, loss.signal);
                         });

}  // namespace
}  // namespace stagecoach::tools
