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
#include "base/text/units.h"
#include "partition/evaluate/cut_evaluator.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/plan/split_plan.h"
#include "partition/search/cut_search.h"
#include "schedule/generators/generators.h"
#include "schedule/ir/placement.h"

namespace stagecoach::partition {
namespace {

absl::Status CheckRequest(const BalanceRequest& request) {
  STAGECOACH_CHECK(request.schedule != nullptr, "a request needs a schedule");
  if (request.micro_batch_rows < 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cannot plan micro-batches of %d rows: expected at least 1", request.micro_batch_rows));
  }
  RETURN_IF_ERROR(CheckCluster(request.cluster));
  const int replicas = request.replication.replicas;
  if (replicas < 1 || request.cluster.size() % replicas != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d devices cannot be divided among %d replicas", request.cluster.size(), replicas));
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

// A pipeline over the devices of a cluster, in place of those of the request.
absl::StatusOr<CutEvaluator> EvaluatorOver(const BalanceRequest& request, const Cluster& cluster) {
  ASSIGN_OR_RETURN(const schedule::Schedule schedule,
                   request.schedule(cluster.size() / request.replication.replicas));
  if (!request.predicts) RETURN_IF_ERROR(CheckTrains(schedule));
  const auto layers = std::make_shared<const LayerTable>(
      request.predicts ? WithForwardAlone(request.layers) : request.layers, request.ends,
      /*updates_in_backward=*/false, request.collectives);
  const Replication& replication = request.replication;
  RETURN_IF_ERROR(
      CheckReplication(replication, int64_t{schedule.num_micro_batches} * replication.replicas));
  return CutEvaluator::Create({.micro_batch_rows = request.micro_batch_rows,
                               .schedule = schedule,
                               .replication = replication,
                               .offload = request.offload},
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
                   CompilePlan(std::move(divided), request.layers, request.ends,
                               request.cluster.transfers, request.collectives));
  if (!CheckFits(compiled, request.cluster).ok()) return std::optional<CompiledPlan>();
  return std::optional<CompiledPlan>(std::move(compiled));
}

bool AreAlike(const std::vector<ClusterDevice>& devices) {
  return std::all_of(devices.begin(), devices.end(), [&](const ClusterDevice& device) {
    return device.memory_bytes == devices.front().memory_bytes &&
           device.speed == devices.front().speed;
  });
}

// Of equal devices; 0 if no number fits. More devices need not need less: they also keep more
// micro-batches in flight. So all numbers are tried.
absl::StatusOr<int> SmallestFit(const BalanceRequest& request) {
  for (int devices = 1; devices <= static_cast<int>(request.layers.size()); ++devices) {
    Cluster cluster = UniformCluster(devices * request.replication.replicas,
                                     request.cluster.devices.front().memory_bytes);
    cluster.transfers = request.cluster.transfers;
    absl::StatusOr<CutEvaluator> pipeline = EvaluatorOver(request, cluster);
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

// What else would fit.
absl::StatusOr<std::string> AdviceFor(const BalanceRequest& request, const char* unit) {
  constexpr char kUse[] = "use smaller micro-batches or more memory";
  if (!AreAlike(request.cluster.devices)) return std::string(kUse);
  ASSIGN_OR_RETURN(const int smallest, SmallestFit(request));
  return smallest > 0 ? absl::StrCat("the smallest number of ", unit, " that fits is ", smallest)
                      : absl::StrCat("no number of ", unit, " fits: ", kUse);
}

absl::Status DoesNotFit(const BalanceRequest& request, CutEvaluator& pipeline) {
  SearchBudget none;
  ASSIGN_OR_RETURN(const CutEvaluator::Cut cut,
                   CutSearch(pipeline, /*may_recompute=*/false, none).Roomiest());
  ASSIGN_OR_RETURN(const CompiledPlan plan, pipeline.Compile(cut));
  schedule::Rank fullest(0);
  const auto excess_bytes = [&](schedule::Rank rank) {
    return plan.of(rank).peak_bytes() - pipeline.devices_of(rank.value()).memory_bytes;
  };
  for (schedule::Rank rank(1); rank.value() < pipeline.num_ranks(); ++rank) {
    if (excess_bytes(rank) > excess_bytes(fullest)) fullest = rank;
  }
  const int64_t peak_bytes = plan.of(fullest).peak_bytes();
  const int64_t memory_bytes = pipeline.devices_of(fullest.value()).memory_bytes;
  std::string needed = base::FormatBytes(peak_bytes);
  std::string available = base::FormatBytes(memory_bytes);
  if (needed == available) {  // rounding hides what is missing
    needed = absl::StrCat(base::FormatCount(peak_bytes), " bytes");
    available = absl::StrCat(base::FormatCount(memory_bytes), " bytes");
  }
  const bool is_alone = pipeline.has_one_stage_per_rank();
  ASSIGN_OR_RETURN(const std::string advice, AdviceFor(request, is_alone ? "stages" : "devices"));
  const auto first = static_cast<size_t>(pipeline.devices_of(fullest.value()).devices.front());
  const std::string whose =
      AreAlike(request.cluster.devices)
          ? "device memory"
          : absl::StrCat("the memory of device ", request.cluster.devices[first].name);
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the model does not fit: %s needs %s, %s is %s; %s\n%s", Describe(plan, fullest, is_alone),
      needed, whose, available, advice, PlanTable(plan)));
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
  ASSIGN_OR_RETURN(CutEvaluator pipeline, EvaluatorOver(request, request.cluster));
  const absl::StatusOr<CutEvaluator::Cut> cut = FindCut(pipeline);
  if (absl::IsResourceExhausted(cut.status())) return DoesNotFit(request, pipeline);
  RETURN_IF_ERROR(cut.status());
  ASSIGN_OR_RETURN(CompiledPlan compiled, pipeline.Compile(*cut));
  ASSIGN_OR_RETURN(std::optional<CompiledPlan> divided, Divided(request, compiled.plan));
  return divided.has_value() ? *std::move(divided) : std::move(compiled);
}

}  // namespace stagecoach::partition
