#include "partition/plan.h"

#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "schedule/generators.h"
#include "schedule/lowering.h"
#include "schedule/validator.h"

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
  if (!schedule.HasBackward()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the plan's schedule %s has no backward action, so that nothing can be "
                        "trained with it",
                        schedule.name));
  }
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

absl::StatusOr<Schedule> LowerAndValidate(const Schedule& schedule) {
  Schedule lowered = schedule;
  if (!schedule.IsLowered()) {
    ASSIGN_OR_RETURN(lowered, schedule::Lower(schedule));
  }
  RETURN_IF_ERROR(schedule::Validate(lowered));
  return lowered;
}

}  // namespace

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
  return CheckSchedule(plan);
}

absl::StatusOr<Schedule> LoweredSchedule(const Plan& plan) {
  RETURN_IF_ERROR(CheckPlan(plan));
  return LowerAndValidate(plan.schedule);
}

absl::StatusOr<Schedule> LoweredEvaluation(const Plan& plan) {
  RETURN_IF_ERROR(CheckPlan(plan));
  ASSIGN_OR_RETURN(
      const Schedule forward,
      schedule::ForwardOnly(plan.schedule.rank_of_stage, plan.num_devices(), plan.micro_batches()));
  return LowerAndValidate(forward);
}

ScheduleMaker GeneratedSchedule(std::string name, int micro_batches, int chunks) {
  return [name = std::move(name), micro_batches, chunks](int devices) -> absl::StatusOr<Schedule> {
    absl::StatusOr<Schedule> made = schedule::Generate(
        name, {.ranks = devices, .micro_batches = micro_batches, .chunks = chunks});
    if (absl::IsNotFound(made.status())) {
      return absl::InvalidArgumentError(made.status().message());
    }
    return made;
  };
}

}  // namespace stagecoach::partition
