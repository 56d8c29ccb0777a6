#include "partition/search/starts.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/evaluate/evaluate_plan.h"

namespace stagecoach::partition {
namespace {

absl::Status Differs(int64_t has, int64_t asked, const char* noun, const char* ending = "s") {
  return absl::InvalidArgumentError(absl::StrFormat("it has %d %s%s, and %d are asked for", has,
                                                    noun, has == 1 ? "" : ending, asked));
}

absl::Status CheckSchedule(const Plan& plan, const PlannerRequest& request) {
  if (!plan.trains()) return absl::InvalidArgumentError("it has no backward passes");
  if (request.given.has_value()) {
    if (plan.schedule == *request.given) return absl::OkStatus();
    return absl::InvalidArgumentError("its schedule is not the one that is asked for");
  }
  if (request.schedule != kAnySchedule && request.schedule != plan.schedule.name) {
    return absl::InvalidArgumentError(absl::StrCat("its schedule is ", plan.schedule.name, ", and ",
                                                   request.schedule, " is asked for"));
  }
  // Stages may have been divided for sums over replicas.
  const int stages = request.chunks.value_or(0) * plan.num_ranks();
  if (request.chunks.has_value() && plan.replicas() == 1 && plan.num_stages() != stages) {
    return Differs(plan.num_stages(), stages, "stage");
  }
  return absl::OkStatus();
}

absl::Status CheckReplicas(const Plan& plan, const PlannerRequest& request) {
  if (request.replicas.has_value() && plan.replicas() != *request.replicas) {
    return Differs(plan.replicas(), *request.replicas, "replica");
  }
  const Replication asked = ReplicationFor(request, plan.replicas());
  if (plan.replication.gradient_blocks != asked.gradient_blocks) {
    return Differs(plan.replication.gradient_blocks, asked.gradient_blocks, "gradient block");
  }
  if (plan.replication == asked) return absl::OkStatus();
  if (plan.replication.offloads_optimizer != asked.offloads_optimizer) {
    return absl::InvalidArgumentError(
        absl::StrCat("its optimizer's state is in the memory of ",
                     plan.replication.offloads_optimizer ? "the host" : "the devices"));
  }
  return absl::InvalidArgumentError("its replicas exchange gradients differently");
}

absl::Status CheckRecomputation(const Plan& plan, const PlannerRequest& request) {
  if (request.may_recompute || plan.recomputed.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError("it recomputes layers");
}

absl::Status CheckOffload(const Plan& plan, const PlannerRequest& request) {
  if (plan.offload == request.offload) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "it moves ", plan.offload, " of the stashes to the host, not ", request.offload));
}

}  // namespace

Replication ReplicationFor(const PlannerRequest& request, int replicas) {
  // One replica is just another choice only where there could be two.
  const bool may_be_two =
      !request.replicas.has_value() && !request.given.has_value() && request.cluster.size() > 1;
  const bool is_replicated = replicas > 1 || !may_be_two;
  return WithPartsFor(request.cluster.transfers,
                      {replicas, request.gradient_blocks.value_or(replicas),
                       request.shards_optimizer && is_replicated,
                       is_replicated ? request.reduction : ReductionKind::kTree,
                       kReductionPartBytes, request.offloads_optimizer});
}

absl::StatusOr<PlanEvaluation> EvaluateStart(const Plan& plan, const PlannerRequest& request) {
  RETURN_IF_ERROR(CheckPlan(plan));
  if (plan.num_layers != request.profile.num_layers()) {
    return Differs(plan.num_layers, request.profile.num_layers(), "layer");
  }
  if (plan.num_devices() != request.cluster.size()) {
    return Differs(plan.num_devices(), request.cluster.size(), "device");
  }
  if (plan.batch_rows() != request.batch_rows) {
    return Differs(plan.batch_rows(), request.batch_rows, "row");
  }
  if (request.micro_batches.has_value() && plan.micro_batches() != *request.micro_batches) {
    return Differs(plan.micro_batches(), *request.micro_batches, "micro-batch", "es");
  }
  RETURN_IF_ERROR(CheckSchedule(plan, request));
  RETURN_IF_ERROR(CheckReplicas(plan, request));
  RETURN_IF_ERROR(CheckRecomputation(plan, request));
  RETURN_IF_ERROR(CheckOffload(plan, request));
  ASSIGN_OR_RETURN(PlanEvaluation evaluation,
                   EvaluatePlan(plan, request.profile, request.cluster, request.objective));
  RETURN_IF_ERROR(CheckFits(evaluation));
  return evaluation;
}

}  // namespace stagecoach::partition
