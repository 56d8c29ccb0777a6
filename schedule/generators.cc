#include "schedule/generators.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "base/status_macros.h"

namespace stagecoach::schedule {
namespace {

constexpr absl::string_view kGPipe = "gpipe";
constexpr absl::string_view kOneFOneB = "1f1b";
constexpr absl::string_view kForwardOnly = "forward";

constexpr Generator kGenerators[] = {
    {kGPipe, "all forward passes, then all backward passes; stash of every micro-batch", GPipe},
    {kOneFOneB, "one forward, one backward in turn; stash of at most as many as there are ranks",
     OneFOneB},
};

absl::Status CheckShape(absl::string_view name, const ScheduleShape& shape) {
  if (shape.ranks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule ", name, ": needs at least 1 rank, got ", shape.ranks));
  }
  if (shape.micro_batches < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "schedule ", name, ": needs at least 1 micro-batch, got ", shape.micro_batches));
  }
  if (shape.micro_batches > kMaxPasses / shape.ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("schedule ", name, ": ", shape.ranks, " ranks x ", shape.micro_batches,
                     " micro-batches exceed ", kMaxPasses, " forward passes; use fewer of either"));
  }
  return absl::OkStatus();
}

// A schedule with one stage per rank and no actions yet.
absl::StatusOr<Schedule> OneStagePerRank(absl::string_view name, const ScheduleShape& shape) {
  RETURN_IF_ERROR(CheckShape(name, shape));
  Schedule schedule;
  schedule.name = std::string(name);
  schedule.num_micro_batches = shape.micro_batches;
  for (Rank rank(0); rank.value() < shape.ranks; ++rank) schedule.rank_of_stage.push_back(rank);
  schedule.actions.resize(static_cast<size_t>(shape.ranks));
  return schedule;
}

// Rank r performs warm_up(r) times F, then F and BW in turn, then BW for what is left.
template <typename WarmUp>
absl::StatusOr<Schedule> WarmUpThenAlternate(absl::string_view name, const ScheduleShape& shape,
                                             WarmUp warm_up) {
  ASSIGN_OR_RETURN(Schedule schedule, OneStagePerRank(name, shape));
  const int m = shape.micro_batches;
  for (int r = 0; r < shape.ranks; ++r) {
    std::vector<Action>& list = schedule.actions[static_cast<size_t>(r)];
    list.reserve(2 * static_cast<size_t>(m));
    const int w = warm_up(r);
    for (int i = 0; i < m + w; ++i) {
      if (i < m) list.push_back({Op::kForward, StageId(r), MicroBatch(i)});
      if (i >= w) list.push_back({Op::kBackward, StageId(r), MicroBatch(i - w)});
    }
  }
  return schedule;
}

}  // namespace

absl::Span<const Generator> Generators() { return kGenerators; }

absl::StatusOr<Schedule> Generate(absl::string_view name, const ScheduleShape& shape) {
  std::vector<std::string> known;
  for (const Generator& generator : Generators()) {
    if (generator.name == name) return generator.generate(shape);
    known.emplace_back(generator.name);
  }
  const std::string nearest = base::Nearest(name, known);
  return absl::NotFoundError(
      absl::StrCat("no schedule is called \"", name, "\"; known are ", absl::StrJoin(known, ", "),
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

absl::StatusOr<Schedule> GPipe(const ScheduleShape& shape) {
  return WarmUpThenAlternate(kGPipe, shape, [&shape](int) { return shape.micro_batches; });
}

absl::StatusOr<Schedule> OneFOneB(const ScheduleShape& shape) {
  return WarmUpThenAlternate(kOneFOneB, shape, [&shape](int r) {
    return std::min(shape.ranks - 1 - r, shape.micro_batches);
  });
}

absl::StatusOr<Schedule> ForwardOnly(const ScheduleShape& shape) {
  ASSIGN_OR_RETURN(Schedule schedule, OneStagePerRank(kForwardOnly, shape));
  for (int r = 0; r < shape.ranks; ++r) {
    std::vector<Action>& list = schedule.actions[static_cast<size_t>(r)];
    for (int i = 0; i < shape.micro_batches; ++i) {
      list.push_back({Op::kForward, StageId(r), MicroBatch(i)});
    }
  }
  return schedule;
}

}  // namespace stagecoach::schedule
