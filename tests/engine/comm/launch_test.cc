#include "engine/comm/launch.h"

#include <map>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/refusals.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::stagecoach::testing::Refusal;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Environments = std::map<std::string, std::string>;

absl::StatusOr<std::optional<Launch>> Find(const Environments& variables) {
  return FindLaunch([&](const char* name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

Environments Joined(Environments a, const Environments& b) {
  a.insert(b.begin(), b.end());
  return a;
}

// The environment of rank 2 of 4, the second of its host, with each launcher.
const Environments kMpirun = {
    {"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "4"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
    {"PMIX_NAMESPACE", "670760961"},     {"PMIX_RANK", "2"}};
const Environments kSrun = {{"SLURM_JOB_ID", "77"},        {"SLURM_STEP_ID", "0"},
                            {"SLURM_PROCID", "2"},         {"SLURM_LOCALID", "1"},
                            {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_NTASKS", "64"},
                            {"SLURM_STEP_NUM_NODES", "2"}};
const Environments kTorchrun = {{"RANK", "2"},
                                {"WORLD_SIZE", "4"},
                                {"LOCAL_RANK", "1"},
                                {"MASTER_ADDR", "node1"},
                                {"MASTER_PORT", "29500"},
                                {"TORCHELASTIC_RUN_ID", "run7"},
                                {"TORCHELASTIC_RESTART_COUNT", "1"}};
const Environments kOwn = {{"STAGECOACH_RANK", "3"},
                           {"STAGECOACH_RANKS", "8"},
                           {"STAGECOACH_LOCAL_RANK", "0"},
                           {"STAGECOACH_RENDEZVOUS", "tcp://here:1"}};

struct Place {
  int rank = 2;
  int ranks = 4;
  int local_rank = 1;
};

struct Case {
  std::string name;
  Environments variables;
  std::string launcher = {};  // empty: no launch
  std::string id = {};
  std::string rendezvous = {};
  Place place = {};
};
void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }

class LaunchTest : public ::testing::TestWithParam<Case> {};

TEST_P(LaunchTest, IsFound) {
  const Case& wanted = GetParam();
  ASSERT_OK_AND_ASSIGN(const std::optional<Launch> launch, Find(wanted.variables));
  ASSERT_EQ(launch.has_value(), !wanted.launcher.empty());
  if (!launch.has_value()) return;
  EXPECT_EQ(launch->launcher, wanted.launcher);
  EXPECT_EQ(launch->rank, wanted.place.rank);
  EXPECT_EQ(launch->ranks, wanted.place.ranks);
  EXPECT_EQ(launch->local_rank, wanted.place.local_rank);
  EXPECT_EQ(launch->id, wanted.id);
  EXPECT_EQ(launch->rendezvous, wanted.rendezvous);
}

std::vector<Case> Cases() {
  return {
      {"Nothing", {}, ""},
      {"Own", kOwn, "STAGECOACH_RANKS", "", "tcp://here:1", {3, 8, 0}},
      {"OwnWithoutLocalRankOrPlace",
       {{"STAGECOACH_RANK", "3"}, {"STAGECOACH_RANKS", "8"}},
       "STAGECOACH_RANKS",
       "",
       "",
       {3, 8, 3}},
      {"OwnBeforeAllOthers",
       Joined(kOwn, Joined(kTorchrun, Joined(kMpirun, kSrun))),
       "STAGECOACH_RANKS",
       "",
       "tcp://here:1",
       {3, 8, 0}},
      {"EmptyIsNotSet", {{"STAGECOACH_RANK", ""}, {"STAGECOACH_RANKS", ""}}, ""},
      {"OneProcess", {{"STAGECOACH_RANK", "0"}, {"STAGECOACH_RANKS", "1"}}, ""},
      {"Mpirun", kMpirun, "mpirun", "670760961"},
      {"MpirunOnOneHost",
       Joined({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}, {"TMPDIR", "/scratch"}}, kMpirun), "mpirun",
       "670760961", "file:/scratch"},
      {"MpirunOnOneHostWithoutTmpdir", Joined({{"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}, kMpirun),
       "mpirun", "670760961", "file:/tmp"},
      {"MpirunWithMaster", Joined(kMpirun, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "9"}}), "mpirun",
       "670760961", "tcp://a:9"},
      {"MpirunWithOwnPlace", Joined(kMpirun, {{"STAGECOACH_RENDEZVOUS", "file:/nfs"}}), "mpirun",
       "670760961", "file:/nfs"},
      {"MpirunWithOwnLocalRank",
       Joined(kMpirun, {{"STAGECOACH_LOCAL_RANK", "3"}}),
       "mpirun",
       "670760961",
       "",
       {2, 4, 3}},
      // srun starts mpirun's daemons, one per host.
      {"MpirunWithinSlurm",
       Joined(kMpirun, {{"SLURM_STEP_ID", "0"}, {"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}}),
       "mpirun", "670760961"},
      {"Mpiexec", {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}, {"MPI_LOCALRANKID", "1"}}, "mpiexec"},
      {"Srun", kSrun, "srun", "77.0."},
      {"SrunOnOneHost", Joined({{"SLURM_STEP_NUM_NODES", "1"}}, kSrun), "srun", "77.0.",
       "file:/tmp"},
      {"SrunOfAnOldSlurm",
       {{"SLURM_STEP_ID", "3"},
        {"SLURM_PROCID", "2"},
        {"SLURM_NTASKS", "4"},
        {"SLURM_LOCALID", "1"}},
       "srun"},
      {"SrunThatServesPmi", Joined(kSrun, {{"PMI_RANK", "2"}, {"PMI_SIZE", "4"}}), "srun", "77.0."},
      {"SrunOfARequeuedJob", Joined(kSrun, {{"SLURM_RESTART_COUNT", "1"}}), "srun", "77.0.1"},
      {"SrunWithMasterAndWorldSize",
       Joined(kSrun, {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "9"}, {"WORLD_SIZE", "4"}}), "srun",
       "77.0.", "tcp://a:9"},
      {"BatchScript",
       {{"SLURM_JOB_ID", "77"},
        {"SLURM_PROCID", "0"},
        {"SLURM_NTASKS", "4"},
        {"SLURM_LOCALID", "0"}},
       ""},
      {"ShellOfSalloc",
       {{"SLURM_STEP_ID", "4294967290"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}},
       ""},
      {"Torchrun", kTorchrun, "torchrun", "run7.1", "tcp://node1:29500"},
      {"TorchrunWhoseAgentHasThePort",
       Joined(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}}), "torchrun", "run7.1",
       "tcp://node1:29501"},
      {"TorchrunOverIpv6", Joined({{"MASTER_ADDR", "fe80::1"}}, kTorchrun), "torchrun", "run7.1",
       "tcp://[fe80::1]:29500"},
      {"TorchrunPerHostWithinSrun",
       Joined(kTorchrun, Joined({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}, kSrun)),
       "torchrun", "run7.1", "tcp://node1:29500"},
      {"TorchrunsNamesSetByAScriptOfMpirun",
       Joined(kMpirun, {{"RANK", "2"},
                        {"WORLD_SIZE", "4"},
                        {"LOCAL_RANK", "1"},
                        {"MASTER_ADDR", "a"},
                        {"MASTER_PORT", "9"}}),
       "torchrun", "", "tcp://a:9"},
      {"CommonNamesOfSomethingElse", {{"RANK", "Colonel"}, {"WORLD_SIZE", "12 parsecs"}}, ""},
  };
}

INSTANTIATE_TEST_SUITE_P(Launchers, LaunchTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

TEST(FindLaunch, TellsWhichDevicesAreLeft) {
  EXPECT_TRUE(Find(kOwn).value()->devices.empty());
  const Environments three = {
      {"STAGECOACH_RANK", "0"}, {"STAGECOACH_RANKS", "3"}, {"STAGECOACH_DEVICES", "0,2,3"}};
  EXPECT_THAT(Find(three).value()->devices, ::testing::ElementsAre(0, 2, 3));
  const auto last = [](const char* name) -> std::optional<std::string> {
    return std::string(name) == "STAGECOACH_DEVICES" ? std::optional("2") : std::nullopt;
  };
  EXPECT_FALSE(FindLaunch(last).value().has_value());
  EXPECT_THAT(FindDevicesLeft(last).value(), ::testing::ElementsAre(2));
}

TEST(FindLaunch, RefusesByVariableAndValue) {
  const Refusal<Environments> refusals[] = {
      {{{"STAGECOACH_RANK", "4"}, {"STAGECOACH_RANKS", "4"}},
       AllOf(HasSubstr("STAGECOACH_RANK is \"4\""), HasSubstr("from 0 to 3"))},
      {{{"OMPI_COMM_WORLD_RANK", "-1"}, {"OMPI_COMM_WORLD_SIZE", "4"}},
       "OMPI_COMM_WORLD_RANK is \"-1\""},
      {Joined({{"SLURM_PROCID", "2x"}}, kSrun),
       AllOf(HasSubstr("SLURM_PROCID is \"2x\""), HasSubstr("number"))},
      {Joined({{"WORLD_SIZE", "99999999999"}}, kTorchrun), "WORLD_SIZE is \"99999999999\""},
      {{{"STAGECOACH_RANKS", "0"}, {"STAGECOACH_RANK", "0"}},
       AllOf(HasSubstr("STAGECOACH_RANKS is \"0\""), HasSubstr("from 1"))},
      {Joined(kOwn, {{"STAGECOACH_DEVICES", "0,1"}}),
       AllOf(HasSubstr("STAGECOACH_DEVICES is \"0,1\""), HasSubstr("each of 8 ranks"))},
      {Joined(kOwn, {{"STAGECOACH_DEVICES", "1,0"}}), "must be ascending numbers"},
      {{{"STAGECOACH_RANKS", "4"}},
       AllOf(HasSubstr("STAGECOACH_RANKS is \"4\""), HasSubstr("STAGECOACH_RANK is not set"))},
      {{{"PMI_RANK", "1"}},
       AllOf(HasSubstr("PMI_RANK is \"1\""), HasSubstr("PMI_SIZE is not set"))},
      {{{"MASTER_ADDR", "a"}, {"WORLD_SIZE", "4"}},
       AllOf(HasSubstr("WORLD_SIZE is \"4\""), HasSubstr("RANK is not set"))},
      {Joined({{"LOCAL_RANK", "4"}}, kTorchrun), "LOCAL_RANK is \"4\""},
      {Joined(kMpirun, {{"STAGECOACH_LOCAL_RANK", "4"}}), "STAGECOACH_LOCAL_RANK is \"4\""},
      {Joined({{"MASTER_PORT", "65536"}}, kTorchrun), "MASTER_PORT is \"65536\""},
      {Joined(kMpirun, {{"RANK", "0"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "a"}}),
       AllOf(HasSubstr("RANK is 0"), HasSubstr("OMPI_COMM_WORLD_RANK is 2"),
             HasSubstr("contradict"))},
      {Joined(kSrun, {{"RANK", "2"}, {"WORLD_SIZE", "8"}, {"MASTER_ADDR", "a"}}),
       AllOf(HasSubstr("WORLD_SIZE is 8"), HasSubstr("SLURM_STEP_NUM_TASKS is 4"))},
      {Joined(kMpirun, {{"PMI_RANK", "2"}, {"PMI_SIZE", "2"}}), "PMI_RANK is \"2\""},
      {Joined(kMpirun, {{"PMI_RANK", "2"}, {"PMI_SIZE", "3"}}),
       AllOf(HasSubstr("OMPI_COMM_WORLD_SIZE is 4"), HasSubstr("PMI_SIZE is 3"))},
  };
  ExpectRefusals(Find, refusals);
}

}  // namespace
}  // namespace stagecoach::engine
