#include "partition/plan/rank_report.h"

#include <cstddef>
#include <iterator>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "partition/plan/planning_threads.h"

namespace stagecoach::partition {
namespace {

using schedule::Action;
using schedule::MemoryPlan;
using schedule::Rank;
using schedule::Schedule;
using schedule::StageId;
using schedule::StageMemory;

bool HaveLikeNeighbors(const Schedule& lowered, StageId a, StageId b) {
  return lowered.is_first(a) == lowered.is_first(b) && lowered.is_last(a) == lowered.is_last(b) &&
         lowered.receives_from_previous(a) == lowered.receives_from_previous(b) &&
         lowered.sends_to_next(a) == lowered.sends_to_next(b);
}

using Counterparts = absl::flat_hash_map<StageId, StageId>;

// Returns which stage of rank `b` stands for each of rank `a`, which has as many.
Counterparts CounterpartsOf(const Schedule& lowered, Rank a, Rank b) {
  const std::vector<StageId> a_stages = lowered.StagesOf(a), b_stages = lowered.StagesOf(b);
  Counterparts counterparts = {{StageId(), StageId()}};
  for (size_t i = 0; i < a_stages.size(); ++i) counterparts.emplace(a_stages[i], b_stages[i]);
  return counterparts;
}

// Returns true if the ranks do the same, except for the ids of their stages, of which they have the
// same number.
bool DoTheSame(const Schedule& lowered, Rank a, Rank b) {
  const Counterparts counterparts = CounterpartsOf(lowered, a, b);
  for (const StageId stage : lowered.StagesOf(a)) {
    if (!HaveLikeNeighbors(lowered, stage, counterparts.at(stage))) return false;
  }
  const std::vector<Action>& a_list = lowered.list_of(a);
  const std::vector<Action>& b_list = lowered.list_of(b);
  return std::equal(a_list.begin(), a_list.end(), b_list.begin(), b_list.end(),
                    [&](Action of_a, const Action& of_b) {
                      of_a.stage = counterparts.at(of_a.stage);
                      return of_a == of_b;
                    });
}

// Returns, for each rank, an earlier one that does the same with stages of the same sizes, or
// itself.
std::vector<Rank> LikeRanks(const Schedule& lowered, absl::Span<const StageMemory> stages) {
  std::vector<Rank> like;
  absl::flat_hash_map<std::vector<StageMemory>, Rank> last_with;
  for (Rank rank(0); rank.value() < lowered.num_ranks(); ++rank) {
    std::vector<StageMemory> own;
    for (const StageId stage : lowered.StagesOf(rank)) {
      own.push_back(stages[static_cast<size_t>(stage.value())]);
    }
    const auto [entry, is_new] = last_with.try_emplace(std::move(own), rank);
    const Rank before = std::exchange(entry->second, rank);
    const bool is_like = !is_new && DoTheSame(lowered, before, rank);
    like.push_back(is_like ? like[static_cast<size_t>(before.value())] : rank);
  }
  return like;
}

// Plans the memory of every rank under one schedule.
absl::StatusOr<std::vector<MemoryPlan>> PlanMemoryOfRanks(
    const Schedule& lowered, absl::Span<const StageMemory> stages,
    const schedule::CollectiveMemory& collectives) {
  const std::vector<Rank> like = LikeRanks(lowered, stages);
  std::vector<absl::StatusOr<MemoryPlan>> planned(like.size());
  base::ForEachInParallel(std::ssize(like), ThreadsFor(lowered), [&](int64_t i) {
    const Rank rank(static_cast<int32_t>(i));
    if (like[static_cast<size_t>(i)] != rank) return;
    planned[static_cast<size_t>(i)] = schedule::PlanMemory(lowered, rank, stages, collectives);
  });
  std::vector<MemoryPlan> plans;
  for (Rank rank(0); rank.value() < lowered.num_ranks(); ++rank) {
    const Rank planned_rank = like[static_cast<size_t>(rank.value())];
    absl::StatusOr<MemoryPlan>& plan = planned[static_cast<size_t>(planned_rank.value())];
    RETURN_IF_ERROR(plan.status());
    plans.push_back(*plan);
    if (planned_rank == rank) continue;
    const Counterparts counterparts = CounterpartsOf(lowered, planned_rank, rank);
    for (schedule::Block& block : plans.back().blocks) block.stage = counterparts.at(block.stage);
  }
  return plans;
}

}  // namespace

absl::StatusOr<RankReport> ReportRank(const schedule::Schedule& training,
                                      const schedule::Schedule& evaluation, schedule::Rank rank,
                                      absl::Span<const schedule::StageMemory> stages,
                                      const schedule::CollectiveMemory& collectives) {
  RankReport report;
  report.stages = training.StagesOf(rank);
  ASSIGN_OR_RETURN(report.training, schedule::PlanMemory(training, rank, stages, collectives));
  ASSIGN_OR_RETURN(report.evaluation, schedule::PlanMemory(evaluation, rank, stages, collectives));
  return report;
}

absl::StatusOr<std::vector<RankReport>> ReportRanks(const Schedule& training,
                                                    const Schedule& evaluation,
                                                    absl::Span<const StageMemory> stages,
                                                    const schedule::CollectiveMemory& collectives) {
  ASSIGN_OR_RETURN(std::vector<MemoryPlan> trained,
                   PlanMemoryOfRanks(training, stages, collectives));
  ASSIGN_OR_RETURN(std::vector<MemoryPlan> evaluated,
                   PlanMemoryOfRanks(evaluation, stages, collectives));
  std::vector<RankReport> reports;
  for (Rank rank(0); rank.value() < training.num_ranks(); ++rank) {
    const auto index = static_cast<size_t>(rank.value());
    reports.push_back(
        {training.StagesOf(rank), std::move(trained[index]), std::move(evaluated[index])});
  }
  return reports;
}

}  // namespace stagecoach::partition
