#include "partition/search/planner.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "partition/bounds/boundaries.h"
#include "partition/search/explain.h"
#include "partition/search/plan_search.h"
#include "partition/search/search_budget.h"
#include "partition/search/starts.h"

namespace stagecoach::partition {
namespace {

// Of the time: for plans on fewer devices.
constexpr double kTimeForSmaller = 0.2;
// Of the time that is left by then: for better bounds of these plans.
constexpr double kTimeForBounds = 0.25;
// Devices are left out for at least this share of the objective.
constexpr double kWorthLeaving = 0.01;

struct Bounded {
  size_t index = 0;
  double lower_bound_ns = 0;  // of all its plans
};

class OptionSearch {
 public:
  OptionSearch(const PlannerRequest& request, absl::Span<const ModelOption> options,
               const SearchLimits& limits)
      : request_(request), options_(options), limits_(limits) {
    for (size_t i = 0; i < options.size(); ++i) {
      boundaries_.push_back(std::make_shared<KnownBoundaries>());
    }
  }

  absl::StatusOr<PlanEvaluation> Run() {
    const absl::Time start = absl::Now();
    const std::vector<Bounded> order = ByBound();
    for (size_t i = 0; i < order.size(); ++i) {
      if (!best_.has_value() || order[i].lower_bound_ns < best_->objective_ns) {
        Try(order[i], order.size() - i);
      }
    }
    ImproveBest();
    if (MayLeaveDevices() && !order.empty()) {
      LeaveDevices(best_.has_value() ? best_->option_index : order.front().index);
    }
    if (!best_.has_value()) return NoPlan();
    best_->lower_bound_ns = std::min(best_->objective_ns, bound_ns_);
    best_->considered = considered_;
    best_->simulated = simulated_;
    best_->is_cut_short = is_cut_short_;
    best_->starts = starts_;
    best_->planning = absl::Now() - start;
    return *std::move(best_);
  }

 private:
  // A request that makes no sense is refused, even if it did for fewer devices.
  bool MayLeaveDevices() const {
    if (!request_.may_leave_devices || request_.given.has_value()) return false;
    return best_.has_value() || absl::c_none_of(failures_, [](const auto& failure) {
             return absl::IsInvalidArgument(failure.second);
           });
  }

  PlannerRequest RequestFor(size_t index) const {
    PlannerRequest request = request_;
    request.profile = options_[index].profile;
    request.cluster = options_[index].cluster;
    request.boundaries = boundaries_[index];
    request.offload = options_[index].offload.value_or(request_.offload);
    for (Plan& start : request.starts) {
      // To the request, those that share layers are one device.
      if (start.tensor_parts == options_[index].tensor_parts) start.tensor_parts = 1;
    }
    return request;
  }

  // Those that are refused are left out.
  std::vector<Bounded> ByBound() {
    if (options_.size() == 1) return {Bounded{}};  // the order of one needs no bound
    std::vector<Bounded> order;
    for (size_t i = 0; i < options_.size(); ++i) {
      const absl::StatusOr<double> bound_ns = JointLowerBoundNs(RequestFor(i), limits_);
      if (bound_ns.ok()) {
        order.push_back({i, *bound_ns});
      } else {
        failures_.emplace_back(i, bound_ns.status());
      }
    }
    std::stable_sort(order.begin(), order.end(), [](const Bounded& a, const Bounded& b) {
      return a.lower_bound_ns < b.lower_bound_ns;
    });
    return order;
  }

  void Try(const Bounded& option, size_t options_left) {
    SearchLimits own = limits_;
    own.improves = limits_.improves && options_.size() == 1;
    own.deadline = WithShare(1.0 / static_cast<double>(options_left));
    if (own.improves) own.deadline = WithShare(1 - kTimeForSmaller);
    if (limits_.on_better) {
      own.on_better = [this](double objective_ns) {
        const bool is_better = !best_.has_value() || objective_ns < best_->objective_ns;
        if (is_better) limits_.on_better(objective_ns);
      };
    }
    absl::StatusOr<std::unique_ptr<PlanSearch>> search =
        PlanSearch::Create(RequestFor(option.index), std::move(own));
    absl::StatusOr<PlanEvaluation> evaluation = search.ok() ? (*search)->Run() : search.status();
    if (!evaluation.ok()) {
      failures_.emplace_back(option.index, evaluation.status());
      // It was cut short, or perhaps there is a plan that was not found to fit.
      if (!absl::IsInvalidArgument(evaluation.status())) Note(BoundOf(option));
      is_cut_short_ |= !absl::IsInvalidArgument(evaluation.status()) &&
                       !absl::IsResourceExhausted(evaluation.status());
      return;
    }
    Note(evaluation->lower_bound_ns);
    NoteStarts(evaluation->starts);
    considered_ += evaluation->considered;
    simulated_ += evaluation->simulated;
    is_cut_short_ |= evaluation->is_cut_short;
    const std::string& name = options_[option.index].name;
    evaluation->choice.option = name;
    if (evaluation->runner_up.has_value()) evaluation->runner_up->option = name;
    evaluation->option_index = option.index;
    evaluation->tensor_parts = options_[option.index].tensor_parts;
    const bool is_first = !best_.has_value();
    const bool is_best = is_first || evaluation->objective_ns < best_->objective_ns;
    if (is_best && limits_.improves && options_.size() > 1) best_search_ = *std::move(search);
    if (is_first) {
      best_ = *std::move(evaluation);
      return;
    }
    if (is_best) std::swap(*best_, *evaluation);
    Compare(*evaluation);
  }

  double BoundOf(const Bounded& option) const {
    if (options_.size() > 1) return option.lower_bound_ns;
    return JointLowerBoundNs(RequestFor(option.index), limits_).value_or(0);
  }

  // Of several options only the best is improved, with the time that is left.
  void ImproveBest() {
    if (best_search_ == nullptr) return;
    SearchLimits own = limits_;
    own.deadline = WithShare(1 - kTimeForSmaller);
    absl::StatusOr<PlanEvaluation> evaluation = best_search_->Continue(std::move(own));
    best_search_ = nullptr;
    if (!evaluation.ok()) return;
    best_->rounds = evaluation->rounds;
    if (evaluation->objective_ns >= best_->objective_ns) return;
    evaluation->choice.option = best_->choice.option;
    evaluation->option_index = best_->option_index;
    evaluation->tensor_parts = best_->tensor_parts;
    evaluation->runner_up = std::move(best_->runner_up);
    evaluation->runner_up_reason = std::move(best_->runner_up_reason);
    best_ = *std::move(evaluation);
  }

  // Of the time that is left.
  absl::Time WithShare(double share) const {
    const absl::Time now = absl::Now();
    return now + share * (limits_.deadline - now);
  }

  // Ways to leave out some of the devices; each has those that it keeps, in their order.
  static std::vector<std::vector<int>> FewerDevices(const Cluster& cluster) {
    std::vector<std::vector<int>> kept;
    std::vector<int> first;
    for (int i = 0; i + 1 < cluster.size(); ++i) {
      first.push_back(i);
      kept.push_back(first);
    }
    double slowest = std::numeric_limits<double>::infinity();
    for (const ClusterDevice& device : cluster.devices) slowest = std::min(slowest, device.speed);
    std::vector<int> faster;
    for (int i = 0; i < cluster.size(); ++i) {
      if (cluster.devices[static_cast<size_t>(i)].speed > slowest) faster.push_back(i);
    }
    const bool is_new = !faster.empty() && faster.back() + 1 != std::ssize(faster);
    if (is_new) kept.push_back(std::move(faster));
    return kept;
  }

  // A request for some of the devices.
  struct Smaller {
    size_t option_index = 0;
    std::vector<int> kept;  // their numbers
    double lower_bound_ns = 0;
    bool has_start = false;  // tried whatever its bound
  };

  // Puts requests with a start first, then those with the least bounds.
  static void Sort(std::vector<Smaller>& smaller) {
    std::stable_sort(smaller.begin(), smaller.end(), [](const Smaller& a, const Smaller& b) {
      return std::make_pair(!a.has_start, a.lower_bound_ns) <
             std::make_pair(!b.has_start, b.lower_bound_ns);
    });
  }

  PlannerRequest RequestFor(const Smaller& smaller) const {
    PlannerRequest request = RequestFor(smaller.option_index);
    request.cluster = request.cluster.Keep(smaller.kept);
    return request;
  }

  // Where all devices have no plan, fewer may have one: fewer micro-batches are in flight.
  void LeaveDevices(size_t option_index) {
    std::vector<Smaller> smaller = SmallerRequests(option_index);
    for (size_t i = 0; i < options_.size(); ++i) {
      if (i == option_index || request_.starts.empty()) continue;
      for (Smaller& one : SmallerRequests(i)) {
        if (one.has_start) smaller.push_back(std::move(one));
      }
    }
    Sort(smaller);
    RaiseBounds(smaller);
    Sort(smaller);
    size_t left = kMostSmaller;
    for (const Smaller& one : smaller) {
      if (!one.has_start && !IsWorthTrying(one.lower_bound_ns)) continue;
      if (left == 0) {
        Note(one.lower_bound_ns);
        continue;
      }
      SearchLimits own = limits_;
      own.deadline = WithShare(1.0 / static_cast<double>(left--));
      TakeIfFaster(FindPlan(RequestFor(one), own), one);
    }
  }

  // Returns the requests for fewer devices that may have a faster plan of that option than the
  // best.
  std::vector<Smaller> SmallerRequests(size_t option_index) {
    PlannerRequest request = RequestFor(option_index);
    const Cluster all = request.cluster;
    std::vector<Smaller> smaller;
    double least_ns = bound_ns_;  // bounds above the least of all do not matter
    std::vector<std::vector<int>> choices = FewerDevices(all);
    std::reverse(choices.begin(), choices.end());
    for (std::vector<int>& kept : choices) {
      request.cluster = all.Keep(kept);
      const bool has_start = absl::c_any_of(
          request.starts, [&](const Plan& start) { return EvaluateStart(start, request).ok(); });
      const absl::StatusOr<double> bound_ns =
          JointLowerBoundNs(request, limits_, {.enough_ns = least_ns});
      if (!bound_ns.ok()) continue;  // it cannot be divided so, or has too many stages
      least_ns = std::min(least_ns, *bound_ns);
      if (!has_start && !IsWorthTrying(*bound_ns)) continue;
      smaller.push_back({option_index, std::move(kept), *bound_ns, has_start});
    }
    return smaller;
  }

  // The bounds of SmallerRequests are quick to compute. This raises as many as a part of the time
  // allows, the least first, which rules out most searches.
  void RaiseBounds(std::vector<Smaller>& smaller) const {
    SearchLimits own = limits_;
    own.deadline = WithShare(kTimeForBounds);
    SearchBudget budget(own);
    std::optional<size_t> option_index;
    PlannerRequest request;
    Cluster all;
    for (Smaller& one : smaller) {
      if (budget.IsReached()) return;
      if (option_index != one.option_index) {
        option_index = one.option_index;
        request = RequestFor(one.option_index);
        all = request.cluster;
      }
      request.cluster = all.Keep(one.kept);
      const absl::StatusOr<double> bound_ns = JointLowerBoundNs(
          request, own, {.enough_ns = WorthTryingNs(), .makes_long_schedules = true});
      if (bound_ns.ok()) one.lower_bound_ns = std::max(one.lower_bound_ns, *bound_ns);
    }
  }

  bool IsWorthTrying(double lower_bound_ns) const { return lower_bound_ns < WorthTryingNs(); }
  double WorthTryingNs() const {
    if (!best_.has_value()) return std::numeric_limits<double>::infinity();
    return (1 - kWorthLeaving) * best_->objective_ns;
  }

  void TakeIfFaster(absl::StatusOr<PlanEvaluation> evaluation, const Smaller& smaller) {
    if (!evaluation.ok()) return Note(smaller.lower_bound_ns);
    Note(evaluation->lower_bound_ns);
    considered_ += evaluation->considered;
    simulated_ += evaluation->simulated;
    NoteStarts(evaluation->starts);
    const bool is_start = best_.has_value() && evaluation->start.has_value();
    if (evaluation->objective_ns >= (is_start ? best_->objective_ns : WorthTryingNs())) return;
    const ModelOption& option = options_[smaller.option_index];
    evaluation->left_out = LeftOut(option.cluster, smaller.kept);
    evaluation->choice.option = option.name;
    evaluation->option_index = smaller.option_index;
    evaluation->tensor_parts = option.tensor_parts;
    const std::optional<PlanEvaluation> all = std::exchange(best_, *std::move(evaluation));
    if (all.has_value()) Compare(*all);
  }

  // Returns the names of the devices that are not kept.
  static std::vector<std::string> LeftOut(const Cluster& cluster, absl::Span<const int> kept) {
    std::vector<std::string> names;
    for (int i = 0; i < cluster.size(); ++i) {
      if (absl::c_linear_search(kept, i)) continue;
      names.push_back(cluster.devices[static_cast<size_t>(i)].name);
    }
    return names;
  }

  // The best with the best of another option.
  void Compare(const PlanEvaluation& loser) {
    PlanEvaluation& winner = *best_;
    if (winner.runner_up.has_value() && winner.runner_up->objective_ns <= loser.objective_ns) {
      return;
    }
    winner.runner_up = loser.choice;
    winner.runner_up_reason = WhyItLost(winner, loser);
  }

  // A start that one option or all devices refuse may be a plan for another option or fewer
  // devices.
  void NoteStarts(const std::vector<absl::Status>& starts) {
    if (starts_.empty()) starts_ = starts;
    for (size_t i = 0; i < starts.size(); ++i) {
      if (starts[i].ok()) starts_[i] = absl::OkStatus();
    }
  }

  void Note(double lower_bound_ns) { bound_ns_ = std::min(bound_ns_, lower_bound_ns); }

  absl::Status NoPlan() const {
    const absl::Status& first = failures_.front().second;
    if (failures_.size() == 1) return first;
    std::vector<std::string> lines;
    for (const auto& [index, status] : failures_) {
      const std::vector<std::string> parts =
          absl::StrSplit(status.message(), absl::MaxSplits('\n', 1));
      lines.push_back(absl::StrCat(options_[index].name, ": ", parts.front()));
    }
    return absl::Status(first.code(), absl::StrJoin(lines, "\n"));
  }

  const PlannerRequest& request_;
  absl::Span<const ModelOption> options_;
  const SearchLimits& limits_;
  std::vector<std::shared_ptr<KnownBoundaries>> boundaries_;  // index: option
  std::optional<PlanEvaluation> best_;
  std::unique_ptr<PlanSearch> best_search_;  // if it is to be continued
  std::vector<std::pair<size_t, absl::Status>> failures_;
  std::vector<absl::Status> starts_;  // PlanEvaluation::starts
  double bound_ns_ = std::numeric_limits<double>::infinity();
  int considered_ = 0;
  int simulated_ = 0;
  bool is_cut_short_ = false;
};

}  // namespace

absl::StatusOr<PlanEvaluation> FindPlan(const PlannerRequest& request, const SearchLimits& limits) {
  const absl::Time start = absl::Now();
  ASSIGN_OR_RETURN(const std::unique_ptr<PlanSearch> search, PlanSearch::Create(request, limits));
  ASSIGN_OR_RETURN(PlanEvaluation evaluation, search->Run());
  evaluation.planning = absl::Now() - start;
  return evaluation;
}

absl::StatusOr<PlanEvaluation> FindPlan(const PlannerRequest& request,
                                        absl::Span<const ModelOption> options,
                                        const SearchLimits& limits) {
  return OptionSearch(request, options, limits).Run();
}

absl::StatusOr<double> JointLowerBoundNs(const PlannerRequest& request, const SearchLimits& limits,
                                         const BoundOptions& options) {
  RETURN_IF_ERROR(CheckRequest(request));
  SearchBudget budget(limits);
  ASSIGN_OR_RETURN(const CandidateSpace space, CandidateSpace::Create(request, budget, options));
  return space.candidates().front().lower_bound_ns;
}

}  // namespace stagecoach::partition
