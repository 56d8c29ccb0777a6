#include "schedule/search/automatic.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/generators/generators.h"
#include "schedule/search/local_search.h"
#include "schedule/search/order_problem.h"
#include "schedule/search/order_timer.h"
#include "schedule/search/policy_search.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"

namespace stagecoach::schedule {
namespace {

// Bounds of the search on any machine: list schedules and moves, and the passes timed in all of
// them together. A search spends the requested share of each.
constexpr int64_t kMaxRuns = 2000;
constexpr int64_t kMaxRunPasses = 12'000'000;
constexpr int64_t kMaxMoves = 6000;
constexpr int64_t kMaxMovePasses = 20'000'000;
// Number of orders that the local search starts from.
constexpr size_t kStarts = 3;

absl::Status CheckRequest(const AutomaticRequest& request) {
  const auto refuse = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat("schedule auto: ", parts...));
  };
  if (request.ranks < 1) return refuse("needs at least 1 rank, got ", request.ranks);
  if (request.micro_batches < 1) {
    return refuse("needs at least 1 micro-batch, got ", request.micro_batches);
  }
  if (request.chunks < 1) return refuse("needs at least 1 chunk per rank, got ", request.chunks);
  if (request.placement == Placement::kV && request.chunks != 2) {
    return refuse("a V placement has 2 chunks, got ", request.chunks);
  }
  if (!(request.effort > 0.0 && request.effort <= 1.0)) {
    return refuse("an effort of ", request.effort, ", must be above 0 and at most 1");
  }
  const double ranks = request.ranks;
  if (ranks * request.chunks * std::max<double>(ranks * request.micro_batches, ranks) >
      static_cast<double>(kMaxSearched)) {
    return refuse(request.ranks, " ranks x ", request.micro_batches, " micro-batches x ",
                  request.chunks, " chunks are too many to search; use fewer of any");
  }
  Schedule placed;
  placed.rank_of_stage = PlaceStages(request.placement, request.ranks, request.chunks);
  placed.num_micro_batches = request.micro_batches;
  placed.actions.resize(static_cast<size_t>(request.ranks));
  RETURN_IF_ERROR(CheckCosts(placed, request.costs));
  if (request.stash_limit.empty()) return absl::OkStatus();
  const auto stages = static_cast<size_t>(request.ranks * request.chunks);
  if (request.stash_limit.size() != static_cast<size_t>(request.ranks)) {
    return refuse("needs a stash limit for each of ", request.ranks, " ranks, got ",
                  request.stash_limit.size());
  }
  if (request.stash.size() != stages) {
    return refuse("a stash limit needs the stash of each of ", stages, " stages, got ",
                  request.stash.size());
  }
  for (size_t s = 0; s < stages; ++s) {
    for (const double kept : {request.stash[s].forward, request.stash[s].weight}) {
      if (std::isfinite(kept) && kept >= 0.0) continue;
      return refuse("the stash of stage ", s, " is ", kept, ", must be finite and at least 0");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckLimits(const OrderProblem& problem, const AutomaticRequest& request) {
  const FusedPasses least = problem.FuseFirst(problem.micro_batches);
  for (int r = 0; r < problem.ranks; ++r) {
    const double need = problem.StashToFinish(r, 0, 0, 0, least);
    if (need <= problem.limit[static_cast<size_t>(r)]) continue;
    return absl::ResourceExhaustedError(absl::StrCat(
        "schedule auto: rank ", r, " needs a stash of ", need,
        " for one micro-batch, its limit is ", request.stash_limit[static_cast<size_t>(r)],
        "; raise the limit, or give the rank less to keep"));
  }
  return absl::OkStatus();
}

class AutomaticSearch {
 public:
  explicit AutomaticSearch(const AutomaticRequest& request)
      : request_(request), problem_(request) {}

  absl::StatusOr<Schedule> Run();

 private:
  // Returns nothing unless the schedule is valid once lowered, and within the limits.
  std::optional<Score> ScoreOf(const Schedule& schedule) const;
  // Keeps the schedule if it may run and is the best so far. Returns whether it may run.
  bool Consider(Schedule schedule);
  void ConsiderGenerators();
  std::optional<Order> ToOrder(const Schedule& schedule) const;
  void Improve();
  int64_t Share(int64_t most) const {
    const double share = request_.effort * static_cast<double>(most);
    return std::max<int64_t>(std::llround(share), 1);
  }

  const AutomaticRequest& request_;
  const OrderProblem problem_;
  std::vector<ScoredOrder> starts_;
  std::optional<Score> best_score_;
  Schedule best_;
};

std::optional<Score> AutomaticSearch::ScoreOf(const Schedule& schedule) const {
  if (!request_.stash_limit.empty() &&
      !CheckStash(schedule, request_.stash, request_.stash_limit).ok()) {
    return std::nullopt;
  }
  const Transfers transfers = TransfersOf(request_.sends);
  const absl::StatusOr<Schedule> lowered = Lower(schedule, {.transfers = transfers});
  if (!lowered.ok() || FindViolation(*lowered, transfers).has_value()) return std::nullopt;
  const absl::StatusOr<Durations> durations =
      SimulateDurations(*lowered, request_.costs, request_.sends);
  if (!durations.ok()) return std::nullopt;
  const bool by_span = request_.objective == OrderObjective::kSpan;
  return Score{by_span ? durations->span_ns : durations->step_ns,
               by_span ? durations->step_ns : durations->span_ns, 0};
}

bool AutomaticSearch::Consider(Schedule schedule) {
  const std::optional<Score> score = ScoreOf(schedule);
  if (!score.has_value()) return false;
  if (!best_score_.has_value() || *score < *best_score_) {
    best_score_ = score;
    best_ = std::move(schedule);
    best_.name = "auto";
  }
  return true;
}

// Returns nothing if passes overlap: the search does not know how long that takes.
std::optional<Order> AutomaticSearch::ToOrder(const Schedule& schedule) const {
  Order order;
  order.lists.resize(schedule.actions.size());
  order.fused = problem_.FuseFirst(0);
  for (size_t r = 0; r < schedule.actions.size(); ++r) {
    for (const Action& action : schedule.actions[r]) {
      if (action.overlaps_next) return std::nullopt;
      const int stage = action.stage.value();
      PassKind kind = PassKind::kBackward;
      if (action.op == Op::kForward) kind = PassKind::kForward;
      if (action.op == Op::kBackwardWeight) kind = PassKind::kWeight;
      const int i = action.micro_batch.value();
      order.lists[r].push_back(problem_.Pass(kind, stage, i));
      if (action.op != Op::kBackward) continue;
      if (problem_.gains_by_fusing[static_cast<size_t>(stage)]) {
        order.fused[static_cast<size_t>(problem_.Pass(PassKind::kForward, stage, i))] = 1;
      } else {
        order.lists[r].push_back(problem_.Pass(PassKind::kWeight, stage, i));
      }
    }
  }
  return order;
}

void AutomaticSearch::ConsiderGenerators() {
  OrderTimer timer(problem_);
  for (const Generator& generator : Generators()) {
    if (generator.placement != request_.placement) continue;
    if (generator.chunks != request_.chunks && !generator.any_chunks) continue;
    const absl::StatusOr<Schedule> schedule =
        generator.generate({.ranks = request_.ranks,
                            .micro_batches = request_.micro_batches,
                            .chunks = request_.chunks});
    if (!schedule.ok() || !Consider(*schedule)) continue;
    std::optional<Order> order = ToOrder(*schedule);
    if (order.has_value() && timer.Run(*order)) {
      starts_.push_back({timer.score(), *std::move(order)});
    }
  }
}

void AutomaticSearch::Improve() {
  std::stable_sort(starts_.begin(), starts_.end(),
                   [](const ScoredOrder& a, const ScoredOrder& b) { return a.score < b.score; });
  if (starts_.size() > kStarts) starts_.resize(kStarts);
  const int64_t moves = Share(std::min(kMaxMoves, kMaxMovePasses / problem_.num_passes()));
  const auto may_run = [this](const Order& order) {
    return ScoreOf(problem_.ToSchedule(order)).has_value();
  };
  for (size_t i = 0; i < starts_.size(); ++i) {
    const LocalSearchOptions options{.max_moves = moves / static_cast<int64_t>(starts_.size()),
                                     .seed = i};
    Consider(problem_.ToSchedule(ImproveOrder(problem_, starts_[i].order, may_run, options)));
  }
}

absl::StatusOr<Schedule> AutomaticSearch::Run() {
  RETURN_IF_ERROR(CheckLimits(problem_, request_));
  ConsiderGenerators();
  const int64_t runs = Share(std::min(kMaxRuns, kMaxRunPasses / problem_.num_passes()));
  const auto consider = [this](const Order& order) { return Consider(problem_.ToSchedule(order)); };
  for (ScoredOrder& found : SearchPolicies(problem_, runs, kStarts, consider)) {
    starts_.push_back(std::move(found));
  }
  if (!best_score_.has_value()) return absl::InternalError("schedule auto: found no order");
  Improve();
  return std::move(best_);
}

}  // namespace

absl::StatusOr<Schedule> Automatic(const AutomaticRequest& request) {
  RETURN_IF_ERROR(CheckRequest(request));
  return AutomaticSearch(request).Run();
}

}  // namespace stagecoach::schedule
