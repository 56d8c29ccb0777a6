#include "partition/search/explain.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "base/text/units.h"
#include "partition/search/best_cut.h"
#include "partition/search/cut_search.h"
#include "schedule/generators/generators.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;
using schedule::Schedule;

constexpr size_t kMostTried = 12;  // candidates that a question is put to
// The largest schedule to try, in ranks times micro-batches. More would take seconds and GBs.
constexpr int64_t kMostTriedPasses = int64_t{1} << 18;
constexpr int64_t kMisfitPrecision = 1024;  // of the plan that comes closest
constexpr double kWorthSaying = 0.01;       // of the objective

// The best step if memory had no limit.
struct Wish {
  std::string schedule;
  double objective_ns = 0;
  std::vector<int64_t> missing_bytes;  // index: rank

  int64_t MostMissing() const {
    return *std::max_element(missing_bytes.begin(), missing_bytes.end());
  }
};

absl::StatusOr<std::optional<Wish>> WishOf(const PlannerRequest& request, CandidateSpace& space,
                                           const Candidate& candidate, SearchBudget& budget) {
  const absl::StatusOr<Schedule> schedule = space.ScheduleOf(candidate);
  if (!schedule.ok()) return std::optional<Wish>();  // refused
  absl::StatusOr<CutEvaluator> free =
      space.EvaluatorOf(candidate, *schedule, {.memory = Relaxation::kUnlimited});
  if (!free.ok()) return std::optional<Wish>();
  const BestCutOptions options = {
      .objective = request.objective, .may_recompute = false, .may_refine = false};
  ASSIGN_OR_RETURN(const BestCut found, FindBestCut(*free, options, budget));
  ASSIGN_OR_RETURN(CutEvaluator limited, space.EvaluatorOf(candidate, *schedule));
  Wish wish;
  wish.schedule = schedule->name;
  wish.objective_ns = found.objective_ns;
  const std::vector<schedule::StageMemory> memory = limited.Memories(found.cut);
  for (Rank rank(0); rank.value() < limited.num_ranks(); ++rank) {
    ASSIGN_OR_RETURN(const int64_t peak_bytes, limited.peaks().RankPeakBytes(rank, memory));
    const int64_t limit_bytes = limited.devices_of(rank.value()).memory_bytes;
    wish.missing_bytes.push_back(std::max<int64_t>(peak_bytes - limit_bytes, 0));
  }
  return std::optional<Wish>(std::move(wish));
}

// A size as people write it, but never less.
std::string AtLeast(int64_t bytes) {
  for (int64_t shown = bytes;; shown += std::max<int64_t>(bytes / 5000, 1)) {
    std::string text = base::FormatBytes(shown);
    const absl::StatusOr<int64_t> read = base::ParseBytes(text);
    if (!read.ok() || *read >= bytes) return text;
  }
}

std::string DevicesOf(const PlannerRequest& request, const Candidate& candidate, int rank) {
  const int first = rank * candidate.replicas();
  std::vector<std::string> names;
  for (int i = 0; i < candidate.replicas(); ++i) {
    names.push_back(request.cluster.devices[static_cast<size_t>(first + i)].name);
  }
  return absl::StrCat(names.size() == 1 ? "device " : "each of the devices ",
                      absl::StrJoin(names, ", "));
}

std::string SayWish(const PlannerRequest& request, const Candidate& candidate, const Wish& wish,
                    double objective_ns) {
  std::vector<int> ranks;
  for (size_t rank = 0; rank < wish.missing_bytes.size(); ++rank) {
    if (wish.missing_bytes[rank] > 0) ranks.push_back(static_cast<int>(rank));
  }
  const std::string where = ranks.size() == 1
                                ? absl::StrCat("on ", DevicesOf(request, candidate, ranks.front()))
                            : ranks.size() == wish.missing_bytes.size()
                                ? std::string("on every device")
                                : absl::StrCat("on the devices of ", ranks.size(), " of ",
                                               wish.missing_bytes.size(), " ranks");
  return absl::StrFormat("with %s more %s: %s, %d micro-batches, %+.1f %%",
                         AtLeast(wish.MostMissing()), where, wish.schedule, candidate.micro_batches,
                         100 * (wish.objective_ns / objective_ns - 1));
}

// The cheapest and the fastest of what more memory would make possible, among the named schedules
// without recomputation, each with the cut that is best without a limit: less may do for as much.
absl::StatusOr<std::vector<std::string>> SayMemory(const PlannerRequest& request,
                                                   CandidateSpace& space, double objective_ns,
                                                   SearchBudget& budget) {
  std::vector<std::pair<Candidate, Wish>> wishes;
  size_t tried = 0;
  for (const Candidate& candidate : space.candidates()) {
    if (candidate.lower_bound_ns >= (1 - kWorthSaying) * objective_ns || ++tried > kMostTried)
      break;
    if (budget.IsReached()) break;
    ASSIGN_OR_RETURN(std::optional<Wish> wish, WishOf(request, space, candidate, budget));
    if (!wish.has_value() || wish->MostMissing() == 0) continue;
    if (wish->objective_ns < (1 - kWorthSaying) * objective_ns) {
      wishes.emplace_back(candidate, *std::move(wish));
    }
  }
  std::vector<std::string> sentences;
  if (wishes.empty()) return sentences;
  const auto cheapest = std::min_element(
      wishes.begin(), wishes.end(),
      [](const auto& a, const auto& b) { return a.second.MostMissing() < b.second.MostMissing(); });
  const auto fastest = std::min_element(
      wishes.begin(), wishes.end(),
      [](const auto& a, const auto& b) { return a.second.objective_ns < b.second.objective_ns; });
  sentences.push_back(SayWish(request, cheapest->first, cheapest->second, objective_ns));
  if (fastest->second.objective_ns < (1 - kWorthSaying) * cheapest->second.objective_ns) {
    sentences.push_back(SayWish(request, fastest->first, fastest->second, objective_ns));
  }
  return sentences;
}

// What a larger batch would give, in time per row.
absl::StatusOr<std::optional<std::string>> SayBatch(CandidateSpace& space, const Candidate& chosen,
                                                    const PlanEvaluation& evaluation) {
  Candidate twice = chosen;
  twice.micro_batches *= 2;
  if (int64_t{twice.ranks} * twice.micro_batches_of_each() > kMostTriedPasses) {
    return std::optional<std::string>();
  }
  if (chosen.schedule.empty() || evaluation.plan().schedule.name != chosen.schedule) {
    return std::optional<std::string>();
  }
  const absl::StatusOr<Schedule> schedule = space.ScheduleOf(twice);
  if (!schedule.ok()) return std::optional<std::string>();
  ASSIGN_OR_RETURN(CutEvaluator pipeline, space.EvaluatorOf(twice, *schedule));
  const CutEvaluator::Cut cut = {evaluation.plan().first_layer, evaluation.plan().recomputed};
  ASSIGN_OR_RETURN(const int64_t excess_bytes, pipeline.ExcessBytes(cut));
  if (excess_bytes > 0) return std::optional<std::string>();
  ASSIGN_OR_RETURN(const int64_t step_ns, pipeline.StepNs(cut));
  const double change = static_cast<double>(step_ns) / (2 * evaluation.objective_ns) - 1;
  if (!(change < -kWorthSaying)) return std::optional<std::string>();
  return std::optional<std::string>(
      absl::StrFormat("with twice the batch (%d micro-batches): %+.1f %% of the time per row",
                      twice.micro_batches, 100 * change));
}

// The candidates that need little memory: small micro-batches under frugal schedules first.
std::vector<Candidate> FrugalOnes(const CandidateSpace& space, bool is_any_schedule) {
  constexpr absl::string_view kFrugal[] = {"1f1b", "v-half", "v-min"};
  std::vector<Candidate> frugal;
  for (const Candidate& candidate : space.candidates()) {
    const auto* const known = std::find(std::begin(kFrugal), std::end(kFrugal), candidate.schedule);
    if (!is_any_schedule || known != std::end(kFrugal)) frugal.push_back(candidate);
  }
  std::stable_sort(frugal.begin(), frugal.end(), [](const Candidate& a, const Candidate& b) {
    return a.micro_batch_rows < b.micro_batch_rows;
  });
  if (frugal.size() > kMostTried) frugal.resize(kMostTried);
  return frugal;
}

bool IsAnySchedule(const PlannerRequest& request) {
  return request.schedule == kAnySchedule && !request.given.has_value();
}

// Whether a plan is found to fit a request.
bool WouldFit(const PlannerRequest& request, SearchBudget& budget) {
  if (budget.IsReached()) return false;
  absl::StatusOr<CandidateSpace> space = CandidateSpace::Create(request, budget);
  if (!space.ok()) return false;
  for (const Candidate& candidate : FrugalOnes(*space, IsAnySchedule(request))) {
    const absl::StatusOr<Schedule> schedule = space->ScheduleOf(candidate);
    if (!schedule.ok()) continue;
    absl::StatusOr<CutEvaluator> pipeline = space->EvaluatorOf(candidate, *schedule);
    if (!pipeline.ok()) continue;
    CutSearch search(*pipeline, request.may_recompute, budget);
    if (search.Find(StageMeasure::kBottleneck).ok()) return true;
  }
  return false;
}

std::vector<std::string> Remedies(const PlannerRequest& request, SearchBudget& budget) {
  std::vector<std::string> remedies;
  if (!request.may_recompute) {
    PlannerRequest changed = request;
    changed.may_recompute = true;
    if (WouldFit(changed, budget)) remedies.push_back("recomputing layers");
  }
  const bool is_uniform =
      std::all_of(request.cluster.devices.begin(), request.cluster.devices.end(),
                  [&](const ClusterDevice& device) {
                    return device.memory_bytes == request.cluster.devices.front().memory_bytes &&
                           device.speed == request.cluster.devices.front().speed;
                  });
  const int layers = request.profile.num_layers();
  for (int more = 1; is_uniform && more <= 2 * request.cluster.size(); more += (more + 3) / 4) {
    PlannerRequest changed = request;
    if (request.cluster.size() + more > std::min(layers, kMaxDevices)) break;
    for (int i = 0; i < more; ++i) {
      changed.cluster.devices.push_back(request.cluster.devices.back());
    }
    if (!WouldFit(changed, budget)) continue;
    remedies.push_back(absl::StrFormat("%d devices", changed.cluster.size()));
    break;
  }
  if (request.micro_batches.has_value()) {
    const int64_t most =
        std::min<int64_t>(request.batch_rows, kMostTriedPasses / request.cluster.size());
    for (int64_t count = int64_t{2} * *request.micro_batches;
         count <= most && request.batch_rows % count == 0; count *= 2) {
      PlannerRequest changed = request;
      changed.micro_batches = static_cast<int>(count);
      if (!WouldFit(changed, budget)) continue;
      remedies.push_back(
          absl::StrFormat("%d micro-batches of %d rows", count, request.batch_rows / count));
      break;
    }
  }
  return remedies;
}

}  // namespace

std::string WhyItLost(const PlanEvaluation& winner, const PlanEvaluation& loser) {
  if (loser.objective_ns == winner.objective_ns) {
    const auto in_flight = [](const PlanEvaluation& evaluation) {
      return std::accumulate(evaluation.stages.begin(), evaluation.stages.end(), 0,
                             [](int sum, const StageCost& stage) { return sum + stage.in_flight; });
    };
    return in_flight(loser) > in_flight(winner)
               ? "as fast, but it keeps more micro-batches in flight"
               : "as fast, and it keeps as many micro-batches in flight";
  }
  struct Parts {
    double busy_ns = 0, order_ns = 0, messages_ns = 0;
  };
  const auto parts_of = [](const PlanEvaluation& evaluation) {
    Parts parts;
    for (const schedule::RankTimes& rank : evaluation.simulation.ranks) {
      parts.busy_ns = std::max(parts.busy_ns, static_cast<double>(rank.busy_ns));
      parts.order_ns = static_cast<double>(rank.dependency_ns);
      parts.messages_ns = static_cast<double>(rank.communication_ns);
    }
    return parts;
  };
  const Parts own = parts_of(winner);
  const Parts its = parts_of(loser);
  const double step_ns = std::max(1.0, static_cast<double>(winner.simulation.step_ns));
  std::vector<std::string> differences;
  const auto add = [&](const char* what, double more_ns) {
    const double share = 100 * more_ns / step_ns;
    if (std::fabs(share) < 0.05) return;
    differences.push_back(
        absl::StrFormat("%s %.1f %% %s", what, std::fabs(share), share > 0 ? "more" : "less"));
  };
  add("its busiest device works", its.busy_ns - own.busy_ns);
  add("its devices wait for each other", its.order_ns - own.order_ns);
  add("messages cost", its.messages_ns - own.messages_ns);
  return differences.empty() ? "it is slightly slower"
                             : absl::StrCat(absl::StrJoin(differences, ", "), " of the step");
}

absl::StatusOr<std::vector<std::string>> WhatWouldChange(const PlannerRequest& request,
                                                         CandidateSpace& space,
                                                         const Candidate& chosen,
                                                         const PlanEvaluation& evaluation,
                                                         SearchBudget& budget) {
  std::vector<std::string> sentences;
  if (request.cluster.limits_memory()) {
    ASSIGN_OR_RETURN(sentences, SayMemory(request, space, evaluation.objective_ns, budget));
  }
  if (request.objective != PlanObjective::kStep) return sentences;
  const schedule::RankTimes& rank = evaluation.simulation.ranks.front();
  const double messages = static_cast<double>(rank.communication_ns) / evaluation.objective_ns;
  if (messages > kWorthSaying) {
    sentences.push_back(
        absl::StrFormat("with messages that take no time: %+.1f %%", -100 * messages));
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> batch, SayBatch(space, chosen, evaluation));
  if (batch.has_value()) sentences.push_back(*batch);
  return sentences;
}

absl::Status ExplainMisfit(const PlannerRequest& request, CandidateSpace& space,
                           SearchBudget& budget) {
  std::optional<PlanEvaluation> closest;
  int64_t least_bytes = 0;
  const std::vector<Candidate> frugal = FrugalOnes(space, IsAnySchedule(request));
  for (const Candidate& candidate : frugal) {
    if (closest.has_value() && budget.IsReached()) break;
    const absl::StatusOr<Schedule> schedule = space.ScheduleOf(candidate);
    if (!schedule.ok()) continue;
    absl::StatusOr<CutEvaluator> pipeline = space.EvaluatorOf(candidate, *schedule);
    if (!pipeline.ok()) continue;
    ASSIGN_OR_RETURN(
        const CutEvaluator::Cut cut,
        CutSearch(*pipeline, request.may_recompute, budget).Roomiest(kMisfitPrecision));
    ASSIGN_OR_RETURN(const int64_t excess_bytes, pipeline->ExcessBytes(cut));
    if (closest.has_value() && excess_bytes >= least_bytes) continue;
    ASSIGN_OR_RETURN(
        closest, EvaluateCut(*pipeline, cut, request.profile, request.cluster, request.objective));
    least_bytes = excess_bytes;
  }
  if (!closest.has_value() || least_bytes <= 0) {
    return absl::ResourceExhaustedError("the model does not fit: no plan was found that fits");
  }
  std::vector<std::string> remedies = Remedies(request, budget);
  remedies.push_back(absl::StrFormat("%s more memory on each device", AtLeast(least_bytes)));
  return absl::ResourceExhaustedError(
      absl::StrCat("the model does not fit: with ", closest->choice.ToString(),
                   ", which comes closest, ", CheckFits(*closest).message(), "; it would fit with ",
                   absl::StrJoin(remedies, ", or with "), "\n", PlanTable(closest->compiled)));
}

}  // namespace stagecoach::partition
