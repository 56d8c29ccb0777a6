#include "tools/stagecoach/bench/bench_case.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::tools {
namespace {

using ::stagecoach::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> NamesOf(const std::vector<BenchCase>& cases) {
  std::vector<std::string> names;
  for (const BenchCase& what : cases) names.push_back(Describe(what, PropertiesOf(cases)));
  return names;
}

TEST(BenchCases, AreAllCombinationsInOrder) {
  EXPECT_THAT(NamesOf(CasesOf({.models = {"default"},
                               .devices = {2, 3},
                               .schedules = {"1f1b", "zb-v"},
                               .micro_batches = {4, 8},
                               .batches = {64}})
                          .value()),
              ElementsAre("1f1b, 2 devices, 4 micro-batches", "1f1b, 2 devices, 8 micro-batches",
                          "zb-v, 2 devices, 4 micro-batches", "zb-v, 2 devices, 8 micro-batches",
                          "1f1b, 3 devices, 4 micro-batches", "1f1b, 3 devices, 8 micro-batches",
                          "zb-v, 3 devices, 4 micro-batches", "zb-v, 3 devices, 8 micro-batches"));
  EXPECT_THAT(NamesOf(CasesOf({.models = {"default", "own.toml"},
                               .precisions = {"fp32", "bf16"},
                               .devices = {2},
                               .replicas = {1, 2},
                               .schedules = {"1f1b"},
                               .micro_batches = {2},
                               .batches = {16, 32},
                               .threads = 3})
                          .value()),
              ::testing::SizeIs(16));
}

TEST(BenchCases, HaveOneScheduleOnOneDevice) {
  EXPECT_THAT(NamesOf(CasesOf({.models = {"default"},
                               .devices = {1, 2},
                               .schedules = {"gpipe", "zb-v"},
                               .micro_batches = {1},
                               .batches = {64}})
                          .value()),
              ElementsAre("gpipe, 1 device, 1 micro-batch", "gpipe, 2 devices, 1 micro-batch",
                          "zb-v, 2 devices, 1 micro-batch"));
}

TEST(BenchCases, GrowWithTheDevicesUnderWeakScaling) {
  const std::vector<BenchCase> cases = CasesOf({.models = {"default"},
                                                .devices = {2, 4},
                                                .replicas = {1, 2},
                                                .schedules = {"1f1b"},
                                                .micro_batches = {4},
                                                .batches = {64},
                                                .scaling = BenchScaling::kWeak})
                                           .value();
  EXPECT_THAT(NamesOf(cases),
              ElementsAre("1f1b, 2 devices, 1 replica, 4 micro-batches, batch 64",
                          "1f1b, 2 devices, 2 replicas, 8 micro-batches, batch 128",
                          "1f1b, 4 devices, 1 replica, 8 micro-batches, batch 128",
                          "1f1b, 4 devices, 2 replicas, 16 micro-batches, batch 256"));
}

TEST(BenchCases, SayWhatTheyHaveInCommon) {
  std::vector<BenchCase> cases = {
      {.model = "default", .devices = 2, .micro_batches = 8, .batch = 64},
      {.model = "default", .devices = 2, .micro_batches = 8, .batch = 128}};
  EXPECT_EQ(CommonOf(cases), "default, fp32, 1 replica, 1 thread");
  cases[1].threads = 2;
  cases[1].precision = "bf16";
  EXPECT_EQ(CommonOf(cases), "default, 1 replica");
  EXPECT_EQ(ToString(cases[1]),
            "default, bf16, 1f1b, 2 devices, 1 replica, 8 micro-batches, batch 128, 2 threads");
  EXPECT_THAT(CommonOf({}), IsEmpty());
}

TEST(BenchCases, OfWeakScalingAreWholeAndWithinTheirLimits) {
  const auto cases = [](int devices, int micro_batches, int64_t batch) {
    return CasesOf({.models = {"default"},
                    .devices = {2, devices},
                    .schedules = {"1f1b"},
                    .micro_batches = {micro_batches},
                    .batches = {batch},
                    .scaling = BenchScaling::kWeak});
  };
  EXPECT_OK(cases(3, 2, 64));
  EXPECT_THAT(cases(3, 1, 64),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--micro-batches is 1 for 2 devices, so no whole number for 3")));
  EXPECT_THAT(cases(3, 2, 1),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("--global-batch-size is 1 for 2 devices, so no whole")));
  EXPECT_THAT(cases(4, 2'000'000'000, 64),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("so more than 2147483647")));
}

TEST(BenchCases, OfAScheduleFileHaveItsShape) {
  EXPECT_THAT(NamesOf(CasesOf({.models = {"default"},
                               .devices = {2, 4},
                               .replicas = {2},
                               .schedules = {"a.csv", "1f1b"},
                               .micro_batches = {8},
                               .batches = {64},
                               .files = {{"a.csv", {.devices = 3, .micro_batches = 5}}}})
                          .value()),
              ElementsAre("a.csv, 3 devices, 10 micro-batches", "1f1b, 2 devices, 8 micro-batches",
                          "1f1b, 4 devices, 8 micro-batches"));
}

}  // namespace
}  // namespace stagecoach::tools
