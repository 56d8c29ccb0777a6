#include "engine/nn/last_use_checker.h"

#include <cstddef>
#include <string>
#include <vector>

#include "base/system/guard_pages.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::StatusIs;

constexpr absl::StatusCode kMisuse = absl::StatusCode::kFailedPrecondition;

// A layer whose x and y are [3, 2] and whose stash has 8 bytes, all there, for one check.
class LastUseCheckerTest : public ::testing::Test {
 protected:
  LastUseCheckerTest() : device_(*kernels::CreateCpuDevice({})) {
    spec_.memory.stash_bytes = 8;
    spec_.memory.input_last_use = LastUse::kForward;
    spec_.memory.output_last_use = LastUse::kForward;
    spec_.memory.output_gradient_last_use = LastUse::kBackwardInput;
  }

  void SetUp() override {
    const auto memory = base::GuardPages::Create(1);
    if (!memory.ok()) GTEST_SKIP() << memory.status();
  }

  // Runs an operation that reads one element of everything that `reads` names.
  absl::Status Call(LastUseChecker& check, LastUse use, const std::vector<std::string>& reads,
                    int64_t step = 1) {
    const SampleNumbers numbers = {.step = step, .first_sample = 0};
    const Tensor tensor = kernels::Float32(values_, kShape);
    LayerArgs args{.stream = device_->stream(),
                   .call = {.is_training = true, .seed = 1, .numbers = &numbers},
                   .x = tensor,
                   .y = {},
                   .dy = tensor};
    args.stash = reinterpret_cast<std::byte*>(values_);
    return check.Call(0, "Operation", use, args, [&](const LayerArgs& given) {
      for (const std::string& name : reads) {
        sum_ += name == "x"    ? given.x.f32()[1]
                : name == "y"  ? given.y.f32()[1]
                : name == "dy" ? given.dy.f32()[1]
                               : *reinterpret_cast<const float*>(given.stash);
      }
      return absl::OkStatus();
    });
  }

  LastUseChecker Check() const {
    LastUseChecker check;
    check.Add(spec_, kernels::Float32(nullptr, kShape), kernels::Float32(nullptr, kShape));
    return check;
  }

  inline static const Shape kShape = Shape{3, 2};
  float values_[6] = {1, 2, 3, 4, 5, 6};
  float sum_ = 0.0F;
  std::unique_ptr<kernels::Device> device_;
  LayerSpec spec_;
};

TEST_F(LastUseCheckerTest, NamesWhatIsReadAfterItsLastUse) {
  LastUseChecker check = Check();
  EXPECT_OK(Call(check, LastUse::kBackwardInput, {"dy", "stash"}));
  EXPECT_EQ(sum_, 2 + 1);  // the original values
  EXPECT_OK(Call(check, LastUse::kBackwardWeight, {}));
  EXPECT_THAT(
      Call(check, LastUse::kBackwardInput, {"x"}),
      StatusIs(kMisuse, ::testing::Eq("Operation reads x, but memory.input_last_use is kForward")));
  EXPECT_THAT(Call(check, LastUse::kBackwardInput, {"y"}),
              StatusIs(kMisuse,
                       ::testing::Eq("Operation reads y, but memory.output_last_use is kForward")));
  EXPECT_THAT(
      Call(check, LastUse::kBackwardWeight, {"dy"}),
      StatusIs(kMisuse, ::testing::Eq("Operation reads dy, but memory.output_gradient_last_use is "
                                      "kBackwardInput")));
  EXPECT_THAT(
      Call(check, LastUse::kBackwardWeight, {"stash"}),
      StatusIs(kMisuse,
               ::testing::Eq("Operation reads the stash, but that is kept until BackwardInput: "
                             "memory.weight_stash_bytes are kept longer")));
}

TEST_F(LastUseCheckerTest, LeavesWhatIsUsedLater) {
  spec_.memory.input_last_use = LastUse::kBackwardInput;
  spec_.memory.output_gradient_last_use = LastUse::kBackwardWeight;
  LastUseChecker check = Check();
  EXPECT_OK(Call(check, LastUse::kBackwardInput, {"x"}));
  EXPECT_OK(Call(check, LastUse::kBackwardWeight, {"dy"}));
  EXPECT_EQ(sum_, 2 + 2);
  EXPECT_THAT(
      Call(check, LastUse::kBackwardWeight, {"x"}),
      StatusIs(kMisuse,
               ::testing::Eq("Operation reads x, but memory.input_last_use is kBackwardInput")));
}

#ifdef NDEBUG
TEST_F(LastUseCheckerTest, IsOfTheFirstStep) {
  LastUseChecker check = Check();
  EXPECT_OK(Call(check, LastUse::kBackwardInput, {}, /*step=*/7));
  EXPECT_THAT(Call(check, LastUse::kBackwardInput, {"x"}, /*step=*/7), StatusIs(kMisuse));
  EXPECT_OK(Call(check, LastUse::kBackwardInput, {"x"}, /*step=*/8));
  EXPECT_EQ(sum_, 0 + 2);
}
#endif

}  // namespace
}  // namespace stagecoach::engine
