#include "partition/report/evaluation_parts.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/text/units.h"

namespace stagecoach::partition {

using schedule::Rank;
using schedule::StageId;

namespace {

constexpr absl::string_view kDigits = "0123456789";
constexpr size_t kMostNamed = 4;  // devices that are left out

}  // namespace

RankMemory MemoryOf(const PlanEvaluation& evaluation, Rank rank) {
  const RankReport& report = evaluation.compiled.of(rank);
  RankMemory memory = {.stash = report.training.peak_stash_bytes,
                       .buffers = BufferBytes(evaluation.compiled, rank),
                       .peak = report.peak_bytes()};
  for (const StageId stage : report.stages) {
    const schedule::StageMemory& own = evaluation.compiled.of(stage).memory;
    memory.parameters += own.parameter_bytes + own.frozen_bytes;
    memory.gradients += own.gradient_bytes;
    memory.optimizer += own.optimizer_bytes;
  }
  const int first = evaluation.plan().first_device_of(rank);
  for (int device = first; device < first + evaluation.plan().replicas(); ++device) {
    const int64_t bytes = evaluation.cluster.devices[static_cast<size_t>(device)].memory_bytes;
    if (bytes > 0 && (memory.limit == 0 || bytes < memory.limit)) memory.limit = bytes;
  }
  return memory;
}

std::string DevicesOf(const PlanEvaluation& evaluation, Rank rank) {
  const auto name = [&evaluation](int device) -> absl::string_view {
    return evaluation.cluster.devices[static_cast<size_t>(device)].name;
  };
  const int first = evaluation.plan().first_device_of(rank);
  const absl::string_view from = name(first);
  const absl::string_view to = name(first + evaluation.plan().replicas() - 1);
  if (evaluation.plan().replicas() == 1) return std::string(from);
  // Names that differ in their trailing number share what stands before it.
  const size_t from_stem = from.find_last_not_of(kDigits) + 1;
  const size_t to_stem = to.find_last_not_of(kDigits) + 1;
  const bool is_shared = from.substr(0, from_stem) == to.substr(0, to_stem) &&
                         from_stem < from.size() && to_stem < to.size();
  return is_shared ? absl::StrCat(from, "-", to.substr(to_stem)) : absl::StrCat(from, " to ", to);
}

std::string StagesOf(const PlanEvaluation& evaluation, Rank rank) {
  const std::vector<StageId>& stages = evaluation.compiled.of(rank).stages;
  constexpr size_t kMaxListed = 3;
  if (stages.size() > kMaxListed) {
    return absl::StrCat(stages[0].value(), ", ", stages[1].value(), " \xE2\x80\xA6 ",
                        stages.back().value());
  }
  return absl::StrJoin(
      stages, ", ", [](std::string* text, StageId stage) { absl::StrAppend(text, stage.value()); });
}

std::string Ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t end = i + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    absl::StrAppend(&text, i > 0 ? ", " : "", numbers[i]);
    if (end - i > 1) absl::StrAppend(&text, "-", numbers[end - 1]);
    i = end;
  }
  return text;
}

std::string InUnit(int64_t ns, const schedule::TimeUnit& unit) {
  return absl::StrFormat("%.*f", unit.ns == 1 ? 0 : 3,
                         static_cast<double>(ns) / static_cast<double>(unit.ns));
}

std::string Headline(double ns) {
  if (ns >= 1e10) return absl::StrFormat("%.2f s", ns / 1e9);
  const double ms = ns / 1e6;
  const int digits = ms >= 100 ? 1 : ms >= 10 ? 2 : ms >= 0.01 ? 3 : 6;
  return absl::StrFormat("%.*f ms", digits, ms);
}

std::string GroupedTransfers(const PlanEvaluation& evaluation) {
  return evaluation.cluster.transfers == schedule::Transfers::kGrouped ? "in groups, as by NCCL"
                                                                       : "";
}

std::string RunnerUp(const PlanEvaluation& evaluation) {
  const Choice& other = *evaluation.runner_up;
  const double more =
      evaluation.objective_ns > 0 ? other.objective_ns / evaluation.objective_ns - 1 : 0;
  return absl::StrCat(other.ToString(), ": ", Headline(other.objective_ns), " (",
                      base::FormatChange(more), ")");
}

std::string Offloads(const PlanEvaluation& evaluation) {
  const Plan& plan = evaluation.plan();
  std::vector<std::string> contents;
  if (plan.offload == 1.0) {
    contents.emplace_back("all stashes that are kept long enough");
  } else if (plan.offload > 0) {
    contents.push_back(absl::StrCat(base::FormatPercent(plan.offload),
                                    " of the stashes that are kept long enough"));
  } else if (plan.moves_stashes()) {
    contents.emplace_back("the stashes that the schedule says");
  }
  if (plan.replication.offloads_optimizer) contents.emplace_back("the optimizer's state");
  return absl::StrCat(absl::StrJoin(contents, ", and "), ", ",
                      base::FormatBytes(MostHostBytes(evaluation.compiled)),
                      " of host memory at most per device");
}

std::string LeftOut(const PlanEvaluation& evaluation) {
  const std::vector<std::string>& names = evaluation.left_out;
  if (names.empty()) return "";
  const bool are_many = names.size() > kMostNamed;
  const auto named = absl::MakeConstSpan(names).first(are_many ? kMostNamed : names.size());
  return absl::StrCat(
      absl::StrJoin(named, ", "),
      are_many ? absl::StrCat(" and ", names.size() - kMostNamed, " more") : std::string(),
      ": it is faster without ", names.size() == 1 ? "it" : "them");
}

namespace {

std::string RoundsOf(const PlanEvaluation& evaluation) {
  const PlanEvaluation::Rounds& rounds = evaluation.rounds;
  if (rounds.count == 0) return "";
  return absl::StrCat("; ", base::FormatCount(rounds.count),
                      rounds.count == 1 ? " round" : " rounds", " of improvement",
                      rounds.are_cut_short ? ", until the time was over" : "");
}

}  // namespace

std::string Effort(const PlanEvaluation& evaluation) {
  return absl::StrCat(
      base::FormatDuration(evaluation.planning), "; ", base::FormatCount(evaluation.considered),
      evaluation.considered == 1 ? " combination" : " combinations", " considered, ",
      base::FormatCount(evaluation.simulated), evaluation.simulated == 1 ? " plan" : " plans",
      " simulated", RoundsOf(evaluation),
      evaluation.is_cut_short ? "; cut short, there may be a better plan" : "");
}

}  // namespace stagecoach::partition
