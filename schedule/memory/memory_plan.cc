#include "schedule/memory/memory_plan.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/ir/action_table.h"
#include "schedule/memory/lifetimes.h"
#include "schedule/memory/packing.h"

namespace stagecoach::schedule {
namespace {

absl::Status CheckStageMemory(const Schedule& schedule, StageId stage, const StageMemory& memory) {
  const std::pair<const char*, int64_t> sizes[] = {
      {"parameter_bytes", memory.parameter_bytes},
      {"gradient_bytes", memory.gradient_bytes},
      {"optimizer_bytes", memory.optimizer_bytes},
      {"host_resident_bytes", memory.host_resident_bytes},
      {"other_resident_bytes", memory.other_resident_bytes},
      {"frozen_bytes", memory.frozen_bytes},
      {"workspace_bytes", memory.workspace_bytes},
      {"reduction_bytes", memory.reduction_bytes},
      {"input_bytes", memory.input_bytes},
      {"output_bytes", memory.output_bytes},
      {"stash_bytes", memory.stash_bytes},
      {"weight_stash_bytes", memory.weight_stash_bytes},
      {"gradient_stash_bytes", memory.gradient_stash_bytes},
      {"output_gradient_bytes", memory.output_gradient_bytes},
      {"input_gradient_bytes", memory.input_gradient_bytes},
  };
  const std::string where = absl::StrCat("memory of stage ", stage.value(), ": ");
  for (const auto& [name, bytes] : sizes) {
    if (bytes >= 0 && bytes <= kMaxSizeBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(where, name, " is ", bytes, ", must be in [0, ", kMaxSizeBytes, "]"));
  }
  if (schedule.is_first(stage) && memory.input_gradient_bytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "the first stage has no input gradient, got ",
                     memory.input_gradient_bytes, " bytes for it; set input_gradient_bytes to 0"));
  }
  if (memory.output_gradient_last_use == LastUse::kForward) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, "output_gradient_last_use is kForward, which precedes its first use"));
  }
  return absl::OkStatus();
}

}  // namespace

int64_t ReductionAreaBytes(absl::Span<const StageMemory> stages, const Schedule& schedule,
                           Rank rank) {
  int64_t bytes = 0;
  for (const StageId stage : schedule.StagesOf(rank)) {
    bytes = std::max(bytes, stages[static_cast<size_t>(stage.value())].reduction_bytes);
  }
  return AlignBlock(bytes);
}

int64_t NormTableBytes(const CollectiveMemory& memory, const Schedule& schedule) {
  if (memory.norm_bytes == 0) return 0;
  return AlignBlock((schedule.num_ranks() * memory.tensor_parts + 1) * memory.norm_bytes +
                    kNormResultBytes);
}

int64_t ResultTableBytes(const CollectiveMemory& memory, const Schedule& schedule, Rank rank) {
  const bool has_own = schedule.rank_of(StageId(schedule.num_stages() - 1)) == rank;
  const int of_all = memory.replicas > 1 ? memory.replicas : 0;
  const int64_t presences =
      memory.results_before_steps ? AlignBlock(schedule.num_ranks() * kPresenceBytes) : 0;
  return (of_all + (has_own ? 0 : 1)) *
             AlignBlock(schedule.num_micro_batches * memory.result_bytes) +
         presences;
}

absl::StatusOr<MemoryPlan> PlanMemory(const Schedule& lowered, Rank rank,
                                      absl::Span<const StageMemory> stages,
                                      const CollectiveMemory& collectives) {
  if (rank.value() < 0 || rank.value() >= lowered.num_ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("rank ", rank.value(), " of a schedule with ", lowered.num_ranks(), " ranks"));
  }
  if (stages.size() != lowered.rank_of_stage.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the schedule has ", lowered.num_stages(),
                                                   " stages, but the memory of ", stages.size(),
                                                   " is described"));
  }
  ASSIGN_OR_RETURN(const ActionTable table, ActionTable::BuildForRank(lowered, rank));
  Lifetimes lifetimes(lowered, rank, table, stages);
  const std::vector<StageId> own_stages = lowered.StagesOf(rank);
  int64_t resident_bytes = 0;
  int64_t workspace_bytes = 0;
  int64_t host_resident_bytes = 0;
  for (const StageId stage : own_stages) {
    const StageMemory& memory = stages[static_cast<size_t>(stage.value())];
    RETURN_IF_ERROR(CheckStageMemory(lowered, stage, memory));
    RETURN_IF_ERROR(lifetimes.CheckLowered(stage));
    resident_bytes += AlignBlock(memory.parameter_bytes) + AlignBlock(memory.gradient_bytes) +
                      AlignBlock(memory.optimizer_bytes) + AlignBlock(memory.other_resident_bytes);
    workspace_bytes = std::max(workspace_bytes, AlignBlock(memory.workspace_bytes));
    host_resident_bytes += AlignBlock(memory.host_resident_bytes);
  }
  for (const int64_t bytes : {collectives.norm_bytes, collectives.result_bytes}) {
    if (bytes >= 0 && bytes <= kMaxSizeBytes) continue;
    return absl::InvalidArgumentError(absl::StrCat("memory of collectives: ", bytes,
                                                   " bytes, must be in [0, ", kMaxSizeBytes, "]"));
  }
  resident_bytes += NormTableBytes(collectives, lowered) +
                    ResultTableBytes(collectives, lowered, rank) +
                    ReductionAreaBytes(stages, lowered, rank);
  for (const StageId stage : own_stages) lifetimes.AddStage(stage);
  MemoryPlan plan = lifetimes.Finish();
  plan.resident_bytes = resident_bytes;
  plan.workspace_bytes = workspace_bytes;
  plan.dynamic_bytes = PackBlocks(absl::MakeSpan(plan.blocks));
  plan.host_resident_bytes = host_resident_bytes;
  plan.host_dynamic_bytes = PackBlocks(absl::MakeSpan(plan.host_blocks));
  return plan;
}

}  // namespace stagecoach::schedule
