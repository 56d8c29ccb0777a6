#include "schedule/generators/generators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "schedule/memory/stash.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"
#include "tests/schedule/handwritten.h"
#include "tests/testing/refusals.h"

namespace stagecoach::schedule {
namespace {

using ::stagecoach::testing::ExpectRefusals;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Body>
void ForAllShapes(int max_ranks, int max_micro_batches, Body body) {
  for (int p = 1; p <= max_ranks; ++p) {
    for (int m = 1; m <= max_micro_batches; ++m) {
      SCOPED_TRACE(::testing::Message() << "p=" << p << " m=" << m);
      body(ScheduleShape{p, m});
    }
  }
}

std::string TextOf(const absl::StatusOr<Schedule>& schedule, int rank) {
  return ToText(schedule.value().list_of(Rank(rank)));
}

// Returns the peaks in micro-batches of one stage, of which `weight_share` remains from B until W.
std::vector<double> StageStashes(const Schedule& schedule, double weight_share) {
  return PeakStash(schedule, std::vector<StageStash>(schedule.rank_of_stage.size(),
                                                     {.forward = 1.0, .weight = weight_share}));
}

TEST(GPipe, IsAllForwardThenAllBackward) {
  EXPECT_EQ(TextOf(GPipe({2, 3}), 1), "F1.0 F1.1 F1.2 BW1.0 BW1.1 BW1.2");
}

TEST(GPipe, StashesEveryMicroBatch) {
  ForAllShapes(9, 20, [](const ScheduleShape& shape) {
    EXPECT_THAT(StageStashes(GPipe(shape).value(), 0.5), Each(shape.micro_batches));
  });
}

TEST(OneFOneB, AlternatesAfterItsWarmUp) {
  EXPECT_EQ(TextOf(OneFOneB({3, 4}), 0), "F0.0 F0.1 F0.2 BW0.0 F0.3 BW0.1 BW0.2 BW0.3");
  EXPECT_EQ(TextOf(OneFOneB({3, 4}), 2), "F2.0 BW2.0 F2.1 BW2.1 F2.2 BW2.2 F2.3 BW2.3");
}

TEST(OneFOneB, StashesItsDepthOrEveryMicroBatch) {
  ForAllShapes(9, 20, [](const ScheduleShape& shape) {
    const std::vector<double> stash = StageStashes(OneFOneB(shape).value(), 0.5);
    for (int r = 0; r < shape.ranks; ++r) {
      EXPECT_EQ(stash[static_cast<size_t>(r)], std::min(shape.ranks - r, shape.micro_batches));
    }
  });
}

TEST(Interleaved, GoesThroughItsChunksInGroupsOfAsManyMicroBatchesAsRanks) {
  EXPECT_EQ(TextOf(Interleaved({2, 4, 2}), 1),
            "F1.0 F1.1 F3.0 BW3.0 F3.1 BW3.1 F1.2 BW1.0 F1.3 BW1.1 F3.2 BW3.2 F3.3 BW3.3 BW1.2 "
            "BW1.3");
}

TEST(Interleaved, StashesWhatTheFormulaSays) {
  for (int v = 1; v <= 4; ++v) {
    for (int p = 1; p <= 8; ++p) {
      for (int m = p; m <= 4 * p; m += p) {
        const std::vector<double> stash = StageStashes(Interleaved({p, m, v}).value(), 0.5);
        for (int r = 0; r < p; ++r) {
          EXPECT_EQ(stash[static_cast<size_t>(r)],
                    std::min(2 * (p - 1 - r) + (v - 1) * p + 1, m * v))
              << "p=" << p << " m=" << m << " v=" << v << " r=" << r;
        }
      }
    }
  }
}

TEST(LoopedBfs, GoesThroughAllMicroBatchesChunkByChunk) {
  EXPECT_EQ(TextOf(LoopedBfs({2, 2, 2}), 0), "F0.0 F0.1 F2.0 F2.1 BW2.0 BW2.1 BW0.0 BW0.1");
}

TEST(LoopedBfs, StashesEveryMicroBatchOfEveryChunk) {
  EXPECT_THAT(StageStashes(LoopedBfs({3, 5, 4}).value(), 0.5), Each(20));
}

TEST(ZeroBubbleH1, FollowsEachBackwardWithAnEarlierWeight) {
  EXPECT_EQ(TextOf(ZeroBubbleH1({2, 3}), 0), "F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2");
  EXPECT_EQ(TextOf(ZeroBubbleH1({2, 3}), 1), "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2");
}

TEST(ZeroBubbleH2, StartsWithTwiceTheForwardPasses) {
  EXPECT_EQ(TextOf(ZeroBubbleH2({2, 4}), 0),
            "F0.0 F0.1 F0.2 B0.0 W0.0 F0.3 B0.1 W0.1 B0.2 W0.2 B0.3 W0.3");
  EXPECT_EQ(TextOf(ZeroBubbleH2({2, 4}), 1),
            "F1.0 B1.0 F1.1 B1.1 F1.2 B1.2 W1.0 F1.3 B1.3 W1.1 W1.2 W1.3");
}

// Those of V are as much as that of the first rank of 1F1B.
TEST(ZeroBubble, StashesWhatTheFormulasSay) {
  for (const double share : {0.0, 0.5, 1.0}) {
    for (int p = 1; p <= 8; ++p) {
      SCOPED_TRACE(p);
      const std::vector<double> h1 = StageStashes(ZeroBubbleH1({p, 3 * p}).value(), share);
      const std::vector<double> h2 = StageStashes(ZeroBubbleH2({p, 4 * p}).value(), share);
      for (int r = 0; r < p; ++r) {
        EXPECT_DOUBLE_EQ(h1[static_cast<size_t>(r)], (p - r) + r * share) << r;
        EXPECT_DOUBLE_EQ(h2[static_cast<size_t>(r)], 2 * (p - r) - 1 + 2 * r * share) << r;
      }
      EXPECT_THAT(StageStashes(ZeroBubbleV({p, 3 * p}).value(), share), Each(2 * p));
    }
  }
}

// Stashes are in whole devices; 1F1B's first rank keeps p.
TEST(VHalfAndVMin, StashAboutHalfAndAThirdOfOneFOneB) {
  const auto largest = [](const Schedule& schedule) {
    const std::vector<double> stash = PeakStash(schedule, UnitStash(schedule.rank_of_stage, 0.5));
    return *std::max_element(stash.begin(), stash.end());
  };
  for (int p = 1; p <= 32; ++p) {
    EXPECT_LE(largest(VHalf({p, 4 * p}).value()), p / 2.0 + 1.0) << p;
    EXPECT_LE(largest(VMin({p, 4 * p}).value()), p / 3.0 + 1.0) << p;
  }
}

TEST(DualPipeV, OverlapsForwardAndBackwardPassesOfDifferentMicroBatches) {
  EXPECT_THAT(TextOf(DualPipeV({2, 6}), 0), HasSubstr("F0.3+ BW3.1 F3.2+ BW0.0"));
}

TEST(DualPipeV, StashesOneChunkMoreThanZeroBubbleV) {
  for (int p = 1; p <= 8; ++p) {
    const std::vector<double> stash = StageStashes(DualPipeV({p, 4 * p}).value(), 0.5);
    EXPECT_THAT(stash, Each(::testing::Le(2 * p + 1))) << p;
    EXPECT_EQ(stash[0], 2 * p + 1) << p;
  }
}

TEST(ForwardOnly, FinishesWhatIsOnItsWayFirst) {
  const auto forward = ForwardOnly(PlaceStages(Placement::kV, 2, 2), 2, 4);
  EXPECT_EQ(TextOf(forward, 0), "F0.0 F0.1 F0.2 F3.0 F0.3 F3.1 F3.2 F3.3");
  EXPECT_EQ(TextOf(forward, 1), "F1.0 F2.0 F1.1 F2.1 F1.2 F2.2 F1.3 F2.3");
}

TEST(ForwardOnly, KeepsNothing) {
  EXPECT_THAT(StageStashes(ForwardOnly({Rank(0), Rank(1)}, 2, 5).value(), 1.0), Each(0));
}

TEST(ForwardOnly, RefusesPlacementsOutOfRange) {
  for (const absl::StatusOr<Schedule>& schedule :
       {ForwardOnly({}, 1, 1), ForwardOnly({Rank(1)}, 1, 1), ForwardOnly({Rank(-1)}, 1, 1),
        ForwardOnly({Rank(0)}, 0, 1), ForwardOnly({Rank(0)}, 1, 0),
        ForwardOnly({Rank(0), Rank(0)}, 1, kMaxPasses)}) {
    EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(Placement, LoopsAndVs) {
  EXPECT_THAT(PlaceStages(Placement::kLoop, 2, 2), ElementsAre(Rank(0), Rank(1), Rank(0), Rank(1)));
  EXPECT_THAT(PlaceStages(Placement::kV, 2, 2), ElementsAre(Rank(0), Rank(1), Rank(1), Rank(0)));
}

// Thousands of shapes, m < p included: valid, or refused with the reason.
TEST(Generators, EveryScheduleIsValidOnceLoweredOrRefusedWithTheReason) {
  int valid = 0;
  int refused = 0;
  ForAllShapes(10, 24, [&](const ScheduleShape& shape) {
    for (const Generator& generator : Generators()) {
      for (int v = 0; v <= 4; ++v) {
        const absl::StatusOr<Schedule> schedule =
            generator.generate({shape.ranks, shape.micro_batches, v});
        if (!schedule.ok()) {
          EXPECT_EQ(schedule.status().code(), absl::StatusCode::kInvalidArgument);
          EXPECT_THAT(std::string(schedule.status().message()),
                      HasSubstr(absl::StrCat("schedule ", generator.name, ": ")));
          ++refused;
          continue;
        }
        const absl::Status status = Validate(Lower(*schedule).value());
        EXPECT_TRUE(status.ok()) << generator.name << " v=" << v << ": " << status;
        ++valid;
      }
    }
  });
  EXPECT_GT(valid, 4000);
  EXPECT_GT(refused, 1000);
}

TEST(Generators, SayWhetherTheyFuseBackwardPasses) {
  for (const Generator& generator : Generators()) {
    for (const int ranks : {2, 4}) {
      const Schedule schedule = generator.generate({.ranks = ranks, .micro_batches = 8}).value();
      bool is_fused = true;
      for (StageId stage(0); stage.value() < schedule.num_stages(); ++stage) {
        if (schedule.SplitsBackward(stage)) is_fused = false;
      }
      EXPECT_EQ(generator.fuses_backward, is_fused) << generator.name << " on " << ranks;
    }
  }
}

TEST(Generators, EvaluationIsValidUnderEveryPlacement) {
  for (int p = 1; p <= 8; ++p) {
    for (int m = 1; m <= 20; ++m) {
      for (int v = 1; v <= 4; ++v) {
        const absl::Status loop =
            Validate(Lower(ForwardOnly(PlaceStages(Placement::kLoop, p, v), p, m).value()).value());
        EXPECT_TRUE(loop.ok()) << "p=" << p << " m=" << m << " v=" << v << ": " << loop;
      }
      const absl::Status v_shape =
          Validate(Lower(ForwardOnly(PlaceStages(Placement::kV, p, 2), p, m).value()).value());
      EXPECT_TRUE(v_shape.ok()) << "p=" << p << " m=" << m << ": " << v_shape;
    }
  }
}

TEST(Generators, NameTheirSchedulesAfterThemselves) {
  for (const Generator& generator : Generators()) {
    EXPECT_EQ(Generate(generator.name, {2, 4}).value().name, std::string(generator.name));
  }
}

TEST(Generators, PlaceTheirStagesAsTheySay) {
  for (const Generator& generator : Generators()) {
    EXPECT_EQ(generator.generate({3, 6}).value().rank_of_stage,
              PlaceStages(generator.placement, 3, generator.chunks))
        << generator.name;
  }
}

TEST(Generators, RefuseShapesOutOfRange) {
  constexpr ScheduleShape kBad[] = {{0, 1},          {1, 0},         {-3, 4},
                                    {4, -3},         {2, 4, -1},     {1 << 13, 1 << 12},
                                    {2, 4, 1 << 24}, {1 << 13, 1, 0}};
  for (const ScheduleShape& shape : kBad) {
    for (const Generator& generator : Generators()) {
      EXPECT_EQ(generator.generate(shape).status().code(), absl::StatusCode::kInvalidArgument)
          << generator.name << " " << shape.ranks << " " << shape.micro_batches;
    }
  }
}

TEST(Generators, RefuseWithTheScheduleAndTheNumbers) {
  using absl::StatusCode::kNotFound;
  ExpectRefusals({
      {OneFOneB({0, 4}), AllOf(HasSubstr("1f1b"), HasSubstr("at least 1 rank, got 0"))},
      {Interleaved({4, 6}), "interleaved: needs micro-batches divisible by ranks: 6 and 4"},
      {DualPipeV({4, 7}), "dualpipe-v: needs at least 2 micro-batches per rank: 7 and 4"},
      {OneFOneB({2, 4, 2}), "1f1b: has 1 chunk per rank, not 2"},
      {ZeroBubbleV({2, 4, 3}), "zb-v: has 2 chunks per rank, not 3"},
      {Generate("1f1c", {2, 2}),
       AllOf(HasSubstr("\"1f1c\""), HasSubstr("known are gpipe, 1f1b, interleaved"),
             HasSubstr("did you mean 1f1b?")),
       kNotFound},
      {Generate("zebra", {2, 2}), ::testing::Not(HasSubstr("did you mean")), kNotFound},
      {Generate("forward", {2, 2}), "", kNotFound},  // it does not train
  });
}

}  // namespace
}  // namespace stagecoach::schedule
