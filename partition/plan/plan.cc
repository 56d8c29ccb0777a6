#include "partition/plan/plan.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "partition/cost/cluster.h"
#include "partition/plan/planning_threads.h"
#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"

namespace stagecoach::partition {
namespace {

using schedule::Rank;
using schedule::Schedule;
using schedule::StageId;

absl::Status CheckSchedule(const Plan& plan) {
  const Schedule& schedule = plan.schedule;
  if (schedule.num_stages() != plan.num_stages()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the plan has %d stages, its schedule %s has %d", plan.num_stages(),
                        schedule.name, schedule.num_stages()));
  }
  return absl::OkStatus();
}

absl::Status CheckRanks(const Schedule& schedule) {
  for (StageId stage(0); stage.value() < schedule.num_stages(); ++stage) {
    const int rank = schedule.rank_of(stage).value();
    if (rank >= 0 && rank < schedule.num_ranks()) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("stage %d of the plan is on rank %d: the schedule has ranks 0 to %d",
                        stage.value(), rank, schedule.num_ranks() - 1));
  }
  for (Rank rank(0); rank.value() < schedule.num_ranks(); ++rank) {
    if (!schedule.StagesOf(rank).empty()) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "rank %d of the plan's schedule has no stage: use fewer ranks", rank.value()));
  }
  return absl::OkStatus();
}

// Checks that they are ascending, each in [0, layers); none without B.
absl::Status CheckRecomputed(const Plan& plan) {
  if (!plan.recomputed.empty() && !plan.trains()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the plan recomputes layer %d within the backward pass, but its schedule %s "
        "has none",
        plan.recomputed.front(), plan.schedule.name));
  }
  int least = 0;
  for (const int layer : plan.recomputed) {
    if (layer < least || layer >= plan.num_layers) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "recomputed layer %d of the plan: expected ascending numbers from 0 to %d", layer,
          plan.num_layers - 1));
    }
    least = layer + 1;
  }
  return absl::OkStatus();
}

absl::Status CheckOffload(const Plan& plan) {
  if (!(plan.offload >= 0.0 && plan.offload <= 1.0)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%g of the plan's stashes are moved to the host: expected 0 to 1", plan.offload));
  }
  if (plan.offload == 0.0 || plan.trains()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the plan moves stashes to the host, but its schedule %s has no backward pass that would "
      "need them",
      plan.schedule.name));
}

absl::Status CheckOrder(const Plan& plan) {
  if (plan.order.empty()) return absl::OkStatus();
  std::vector<bool> seen(static_cast<size_t>(plan.num_layers));
  for (const int layer : plan.order) {
    if (layer < 0 || layer >= plan.num_layers || seen[static_cast<size_t>(layer)]) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "layer %d in the order of the plan: expected each number from 0 to %d once", layer,
          plan.num_layers - 1));
    }
    seen[static_cast<size_t>(layer)] = true;
  }
  if (static_cast<int>(plan.order.size()) == plan.num_layers) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("the order of the plan has %d of %d layers",
                                                    plan.order.size(), plan.num_layers));
}

schedule::LoweringOptions OptionsFor(const Replication& replication, schedule::Transfers transfers,
                                     const schedule::CollectiveMemory& collectives,
                                     double offload) {
  const schedule::ResultsPlace results =
      collectives.result_bytes == 0      ? schedule::ResultsPlace::kNowhere
      : collectives.results_before_steps ? schedule::ResultsPlace::kBeforeSteps
                                         : schedule::ResultsPlace::kEnd;
  return {.reduce_gradients = replication.is_needed(),
          .sum_ties = collectives.ties > 0,
          .exchange_norms = collectives.norm_bytes > 0,
          .results = results,
          .offload = offload,
          .transfers = transfers};
}

// Refuses a given schedule that has a REDUCE for some stages only.
absl::Status CheckReduces(const Schedule& lowered) {
  std::vector<bool> reduces(static_cast<size_t>(lowered.num_stages()));
  for (const std::vector<schedule::Action>& list : lowered.actions) {
    for (const schedule::Action& action : list) {
      if (action.op != schedule::Op::kReduceGradients) continue;
      reduces[static_cast<size_t>(action.stage.value())] = true;
    }
  }
  const auto missing = std::find(reduces.begin(), reduces.end(), false);
  if (missing == reduces.end()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "the schedule has a REDUCE of other stages, but none of stage %d, whose gradients must be "
      "summed over the replicas; add it, or remove all",
      missing - reduces.begin()));
}

absl::StatusOr<Schedule> LowerAndValidate(const Schedule& schedule,
                                          const schedule::LoweringOptions& options) {
  Schedule lowered;
  if (schedule.IsLowered()) {
    lowered = schedule;
  } else {
    ASSIGN_OR_RETURN(lowered, schedule::Lower(schedule, options));
  }
  FitToRun(options, lowered);
  RETURN_IF_ERROR(schedule::Validate(lowered, options.transfers));
  if (options.reduce_gradients && lowered.HasBackward()) RETURN_IF_ERROR(CheckReduces(lowered));
  return lowered;
}

}  // namespace

int Plan::stage_of(int layer) const {
  const auto next = std::upper_bound(first_layer.begin(), first_layer.end(), layer);
  return static_cast<int>(next - first_layer.begin()) - 1;
}

absl::Status CheckPlan(const Plan& plan) {
  if (plan.micro_batches() < 1 || plan.micro_batch_rows < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a plan with %d micro-batches of %d rows: expected at least 1 of each",
                        plan.micro_batches(), plan.micro_batch_rows));
  }
  if (plan.first_layer.empty() || plan.first(0) != 0) {
    return absl::InvalidArgumentError("a plan's first stage must begin with layer 0");
  }
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    if (plan.last(stage) < plan.first(stage) || plan.last(stage) >= plan.num_layers) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "stage %d of the plan has layers %d to %d of %d: expected each stage to begin after the "
          "one before it, and to have a layer",
          stage, plan.first(stage), plan.last(stage), plan.num_layers));
    }
  }
  RETURN_IF_ERROR(CheckSchedule(plan));
  RETURN_IF_ERROR(CheckRanks(plan.schedule));
  RETURN_IF_ERROR(CheckReplication(plan.replication, plan.micro_batches()));
  if (plan.tensor_parts < 1 || !std::has_single_bit(static_cast<unsigned>(plan.tensor_parts))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tensor parts: expected a power of two", plan.tensor_parts));
  }
  RETURN_IF_ERROR(CheckRecomputed(plan));
  RETURN_IF_ERROR(CheckOffload(plan));
  return CheckOrder(plan);
}

absl::Status CheckTrains(const Schedule& schedule) {
  if (schedule.HasBackward()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the schedule %s has no backward action, so it cannot train", schedule.name));
}

absl::Status CheckPerformable(const Plan& plan) {
  RETURN_IF_ERROR(CheckPlan(plan));
  return LowerAndValidate(plan.schedule, {.reduce_gradients = plan.replication.is_needed()})
      .status();
}

absl::StatusOr<LoweredSchedules> LowerSchedules(const Schedule& schedule,
                                                const Replication& replication,
                                                schedule::Transfers transfers,
                                                const schedule::CollectiveMemory& collectives,
                                                double offload) {
  RETURN_IF_ERROR(CheckRanks(schedule));
  LoweredSchedules lowered = {
      .transfers = transfers, .collectives = collectives, .replication = replication};
  lowered.collectives.replicas = replication.replicas;
  const schedule::LoweringOptions options =
      OptionsFor(replication, transfers, collectives, offload);
  if (!schedule.HasBackward()) {
    ASSIGN_OR_RETURN(lowered.training, LowerAndValidate(schedule, options));
    lowered.evaluation = lowered.training;
    return lowered;
  }
  ASSIGN_OR_RETURN(const Schedule forward,
                   schedule::ForwardOnly(schedule.rank_of_stage, schedule.num_ranks(),
                                         schedule.num_micro_batches));
  absl::StatusOr<Schedule> training, evaluation;
  base::ForEachInParallel(2, ThreadsFor(schedule), [&](int64_t i) {
    (i == 0 ? training : evaluation) = LowerAndValidate(i == 0 ? schedule : forward, options);
  });
  ASSIGN_OR_RETURN(lowered.training, std::move(training));
  ASSIGN_OR_RETURN(lowered.evaluation, std::move(evaluation));
  return lowered;
}

absl::StatusOr<LoweredSchedules> LowerPlan(const Plan& plan, schedule::Transfers transfers,
                                           const schedule::CollectiveMemory& collectives) {
  RETURN_IF_ERROR(CheckPlan(plan));
  return LowerSchedules(plan.schedule, plan.replication, transfers, collectives, plan.offload);
}

}  // namespace stagecoach::partition
