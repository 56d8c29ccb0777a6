#include "schedule/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "schedule/lowering.h"
#include "schedule/validator.h"
#include "tests/schedule/handwritten.h"

namespace stagecoach::schedule {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kMaxRanks = 9;
constexpr int kMaxMicroBatches = 20;

template <typename Body>
void ForAllShapes(Body body) {
  for (int p = 1; p <= kMaxRanks; ++p) {
    for (int m = 1; m <= kMaxMicroBatches; ++m) {
      SCOPED_TRACE(testing::Message() << "p=" << p << " m=" << m);
      body(ScheduleShape{p, m});
    }
  }
}

std::string Passes(const char* op, int stage, int first, int last) {
  std::string text;
  for (int i = first; i < last; ++i) {
    text += std::string(op) + std::to_string(stage) + "." + std::to_string(i) + " ";
  }
  return text;
}

std::string WithoutTrailingSpace(std::string text) {
  if (!text.empty() && text.back() == ' ') text.pop_back();
  return text;
}

TEST(GPipe, OrderIsAllForwardThenAllBackward) {
  ForAllShapes([](const ScheduleShape& shape) {
    const Schedule schedule = GPipe(shape).value();
    for (int r = 0; r < shape.ranks; ++r) {
      EXPECT_EQ(ToText(schedule.list_of(Rank(r))),
                WithoutTrailingSpace(Passes("F", r, 0, shape.micro_batches) +
                                     Passes("BW", r, 0, shape.micro_batches)));
    }
  });
}

TEST(GPipe, StashIsEveryMicroBatch) {
  ForAllShapes([](const ScheduleShape& shape) {
    EXPECT_THAT(PeakStash(GPipe(shape).value()), testing::Each(shape.micro_batches));
  });
}

// The published order, written out: w F; m-w times (F, BW); w BW.
TEST(OneFOneB, OrderFollowsThePublishedFormula) {
  ForAllShapes([](const ScheduleShape& shape) {
    const Schedule schedule = OneFOneB(shape).value();
    const int m = shape.micro_batches;
    for (int r = 0; r < shape.ranks; ++r) {
      const int w = std::min(shape.ranks - 1 - r, m);
      std::string expected = Passes("F", r, 0, w);
      for (int i = 0; i < m - w; ++i) {
        expected += Passes("F", r, w + i, w + i + 1) + Passes("BW", r, i, i + 1);
      }
      expected += Passes("BW", r, m - w, m);
      EXPECT_EQ(ToText(schedule.list_of(Rank(r))), WithoutTrailingSpace(expected));
    }
  });
}

TEST(OneFOneB, StashIsDepthBehindTheRankOrEveryMicroBatch) {
  ForAllShapes([](const ScheduleShape& shape) {
    const std::vector<int> stash = PeakStash(OneFOneB(shape).value());
    for (int r = 0; r < shape.ranks; ++r) {
      EXPECT_EQ(stash[static_cast<size_t>(r)], std::min(shape.ranks - r, shape.micro_batches));
    }
  });
}

TEST(ForwardOnly, OrderIsForwardOfEveryMicroBatch) {
  ForAllShapes([](const ScheduleShape& shape) {
    const Schedule schedule = ForwardOnly(shape).value();
    for (int r = 0; r < shape.ranks; ++r) {
      EXPECT_EQ(ToText(schedule.list_of(Rank(r))),
                WithoutTrailingSpace(Passes("F", r, 0, shape.micro_batches)));
    }
  });
}

TEST(ForwardOnly, KeepsNothing) {
  EXPECT_THAT(PeakStash(ForwardOnly({3, 5}).value()), testing::Each(0));
}

TEST(ForwardOnly, IsNotListedAmongTheTrainingSchedules) {
  EXPECT_EQ(Generate("forward", {2, 2}).status().code(), absl::StatusCode::kNotFound);
}

TEST(Generators, EveryScheduleIsValidOnceLowered) {
  ForAllShapes([](const ScheduleShape& shape) {
    for (const Generator& generator : Generators()) {
      const absl::StatusOr<Schedule> lowered = Lower(generator.generate(shape).value());
      ASSERT_TRUE(lowered.ok()) << lowered.status();
      EXPECT_TRUE(Validate(*lowered).ok()) << generator.name << ": " << Validate(*lowered);
    }
  });
}

TEST(Generators, ForwardOnlyIsValidOnceLowered) {
  ForAllShapes([](const ScheduleShape& shape) {
    const absl::Status status = Validate(Lower(ForwardOnly(shape).value()).value());
    EXPECT_TRUE(status.ok()) << status;
  });
}

TEST(Generators, NameTheirSchedulesAfterThemselves) {
  for (const Generator& generator : Generators()) {
    EXPECT_EQ(Generate(generator.name, {2, 3}).value().name, std::string(generator.name));
  }
}

TEST(Generators, RefuseShapesOutOfRange) {
  constexpr ScheduleShape kBad[] = {{0, 1}, {1, 0}, {-3, 4}, {4, -3}, {1 << 13, 1 << 12}};
  for (const ScheduleShape& shape : kBad) {
    for (const Generator& generator : Generators()) {
      EXPECT_EQ(generator.generate(shape).status().code(), absl::StatusCode::kInvalidArgument)
          << generator.name << " " << shape.ranks << " " << shape.micro_batches;
    }
  }
}

TEST(Generators, ReasonOfARefusalNamesTheScheduleAndTheNumber) {
  EXPECT_THAT(std::string(OneFOneB({0, 4}).status().message()),
              AllOf(HasSubstr("1f1b"), HasSubstr("at least 1 rank, got 0")));
}

TEST(Generators, UnknownNameListsTheKnownOnesAndTheNearest) {
  const absl::Status status = Generate("1f1c", {2, 2}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("\"1f1c\""), HasSubstr("known are gpipe, 1f1b"),
                    HasSubstr("did you mean 1f1b?")));
}

TEST(Generators, UnknownNameNearNoneSuggestsNothing) {
  EXPECT_THAT(std::string(Generate("zebra", {2, 2}).status().message()),
              testing::Not(HasSubstr("did you mean")));
}

}  // namespace
}  // namespace stagecoach::schedule
