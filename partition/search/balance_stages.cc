#include "partition/search/balance_stages.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "partition/cost/cluster.h"
#include "partition/plan/split_plan.h"
#include "partition/search/cut_evaluator.h"
#include "partition/search/cut_search.h"
#include "schedule/generators/generators.h"
#include "schedule/ir/placement.h"

namespace stagecoach::partition {
namespace {

absl::Status CheckRequest(const BalanceRequest& request) {
  STAGECOACH_CHECK(request.schedule != nullptr, "a request needs a schedule");
  if (request.devices < 1 || request.micro_batch_rows < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cannot plan %d devices and micro-batches of %d rows: expected at least 1 of each",
        request.devices, request.micro_batch_rows));
  }
  if (request.device_memory_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("device memory is %d bytes: expected a size, or 0 for no limit",
                        request.device_memory_bytes));
  }
  return CheckLayers(request.layers);
}

std::vector<LayerCost> WithForwardAlone(std::vector<LayerCost> layers) {
  for (LayerCost& layer : layers) {
    layer.backward_input_ns = layer.backward_weight_ns = layer.step_ns = 0;
    layer.shared_backward_ns = 0;
  }
  return layers;
}

// A pipeline of equal devices. Its own number of devices is not read from the request.
absl::StatusOr<CutEvaluator> EvaluatorOver(const BalanceRequest& request, int devices) {
  ASSIGN_OR_RETURN(const schedule::Schedule schedule, request.schedule(devices));
  if (!request.predicts) RETURN_IF_ERROR(CheckTrains(schedule));
  const auto layers = std::make_shared<const LayerTable>(
      request.predicts ? WithForwardAlone(request.layers) : request.layers, request.ends,
      /*updates_in_backward=*/false, request.collectives);
  const Replication& replication = request.replication;
  RETURN_IF_ERROR(
      CheckReplication(replication, int64_t{schedule.num_micro_batches} * replication.replicas));
  Cluster cluster = UniformCluster(devices * replication.replicas, request.device_memory_bytes);
  cluster.transfers = request.transfers;
  return CutEvaluator::Create({.micro_batch_rows = request.micro_batch_rows,
                               .schedule = schedule,
                               .replication = replication},
                              layers, cluster);
}

absl::StatusOr<CutEvaluator::Cut> FindCut(CutEvaluator& pipeline) {
  SearchBudget none;
  return CutSearch(pipeline, /*may_recompute=*/false, none).Find(StageMeasure::kBottleneck);
}

// The plan with stages divided for reductions, if they can be and it fits.
absl::StatusOr<std::optional<CompiledPlan>> Divided(const BalanceRequest& request,
                                                    const Plan& plan) {
  Plan divided = SplitForReduction(plan, request.layers);
  if (divided.num_stages() == plan.num_stages()) return std::optional<CompiledPlan>();
  ASSIGN_OR_RETURN(CompiledPlan compiled,
                   CompilePlan(std::move(divided), request.layers, request.ends, request.transfers,
                               request.collectives));
  for (const RankReport& rank : compiled.ranks) {
    const bool fits =
        request.device_memory_bytes == 0 || rank.peak_bytes() <= request.device_memory_bytes;
    if (!fits) return std::optional<CompiledPlan>();
  }
  return std::optional<CompiledPlan>(std::move(compiled));
}

// 0 if no number of devices fits. More devices need not need less: they also keep more
// micro-batches in flight. So all numbers are tried.
absl::StatusOr<int> SmallestFit(const BalanceRequest& request) {
  for (int devices = 1; devices <= static_cast<int>(request.layers.size()); ++devices) {
    absl::StatusOr<CutEvaluator> pipeline = EvaluatorOver(request, devices);
    if (absl::IsInvalidArgument(pipeline.status())) continue;  // the schedule refuses this shape
    RETURN_IF_ERROR(pipeline.status());
    const absl::Status found = FindCut(*pipeline).status();
    if (found.ok()) return devices;
    if (!absl::IsResourceExhausted(found)) return found;
  }
  return 0;
}

// "stage 2 (layers 4-5)", or for devices with several stages "device 0 (stages 0, 7 with layers
// 0-3, 20-23)".
std::string Describe(const CompiledPlan& plan, schedule::Rank rank, bool has_one_stage_per_device) {
  const std::vector<schedule::StageId>& stages = plan.of(rank).stages;
  const std::string layers =
      absl::StrJoin(stages, ", ", [&](std::string* text, schedule::StageId id) {
        absl::StrAppend(text, plan.of(id).first_layer, "-", plan.of(id).last_layer);
      });
  if (has_one_stage_per_device) {
    return absl::StrCat("stage ", stages[0].value(), " (layers ", layers, ")");
  }
  const std::string ids = absl::StrJoin(stages, ", ", [](std::string* text, schedule::StageId id) {
    absl::StrAppend(text, id.value());
  });
  return absl::StrCat("device ", rank.value(), " (stages ", ids, " with layers ", layers, ")");
}

absl::Status DoesNotFit(const BalanceRequest& request, CutEvaluator& pipeline) {
  SearchBudget none;
  ASSIGN_OR_RETURN(const CutEvaluator::Cut cut,
                   CutSearch(pipeline, /*may_recompute=*/false, none).Roomiest());
  ASSIGN_OR_RETURN(const CompiledPlan plan, pipeline.Compile(cut));
  const auto largest = std::max_element(
      plan.ranks.begin(), plan.ranks.end(),
      [](const RankReport& a, const RankReport& b) { return a.peak_bytes() < b.peak_bytes(); });
  const int64_t peak_bytes = largest->peak_bytes();
  std::string needed = base::FormatBytes(peak_bytes);
  std::string available = base::FormatBytes(request.device_memory_bytes);
  if (needed == available) {  // rounding hides what is missing
    needed = absl::StrCat(base::FormatCount(peak_bytes), " bytes");
    available = absl::StrCat(base::FormatCount(request.device_memory_bytes), " bytes");
  }
  ASSIGN_OR_RETURN(const int smallest, SmallestFit(request));
  const char* const unit = pipeline.has_one_stage_per_rank() ? "stages" : "devices";
  const std::string advice =
      smallest > 0
          ? absl::StrCat("the smallest number of ", unit, " that fits is ", smallest)
          : absl::StrCat("no number of ", unit, " fits: use smaller micro-batches or more memory");
  const schedule::Rank rank(static_cast<int32_t>(largest - plan.ranks.begin()));
  return absl::ResourceExhaustedError(
      absl::StrFormat("the model does not fit: %s needs %s, device memory is %s; %s\n%s",
                      Describe(plan, rank, pipeline.has_one_stage_per_rank()), needed, available,
                      advice, PlanTable(plan)));
}

}  // namespace

ScheduleMaker GeneratedSchedule(std::string name, int micro_batches, int chunks) {
  return [name = std::move(name), micro_batches,
          chunks](int devices) -> absl::StatusOr<schedule::Schedule> {
    absl::StatusOr<schedule::Schedule> made = schedule::Generate(
        name, {.ranks = devices, .micro_batches = micro_batches, .chunks = chunks});
    if (absl::IsNotFound(made.status())) {
      return absl::InvalidArgumentError(made.status().message());
    }
    return made;
  };
}

ScheduleMaker ForwardSchedule(int micro_batches) {
  return [micro_batches](int devices) {
    return schedule::ForwardOnly(schedule::PlaceStages(schedule::Placement::kLoop, devices, 1),
                                 devices, micro_batches);
  };
}

absl::StatusOr<CompiledPlan> BalanceStages(const BalanceRequest& request) {
  RETURN_IF_ERROR(CheckRequest(request));
  ASSIGN_OR_RETURN(CutEvaluator pipeline, EvaluatorOver(request, request.devices));
  const absl::StatusOr<CutEvaluator::Cut> cut = FindCut(pipeline);
  if (absl::IsResourceExhausted(cut.status())) return DoesNotFit(request, pipeline);
  RETURN_IF_ERROR(cut.status());
  ASSIGN_OR_RETURN(CompiledPlan compiled, pipeline.Compile(*cut));
  ASSIGN_OR_RETURN(std::optional<CompiledPlan> divided, Divided(request, compiled.plan));
  return divided.has_value() ? *std::move(divided) : std::move(compiled);
}

}  // namespace stagecoach::partition
