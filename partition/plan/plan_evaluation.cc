#include "partition/plan/plan_evaluation.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/text/units.h"
#include "schedule/simulate/shared_cores.h"

namespace stagecoach::partition {
using schedule::Rank;

std::string Counted(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

std::string Choice::ToString() const {
  std::string text =
      absl::StrCat(schedule, schedule == "auto" ? " (searched order), " : ", ", micro_batches,
                   " micro-batch", micro_batches == 1 ? "" : "es", " of ",
                   Counted(micro_batch_rows, "row"), ", ", Counted(ranks, "rank"));
  if (chunks > 1) absl::StrAppend(&text, " of ", chunks, " stages");
  if (replicas > 1) absl::StrAppend(&text, ", ", replicas, " replicas");
  if (recomputed_layers > 0) {
    absl::StrAppend(&text, ", ", Counted(recomputed_layers, "layer"), " recomputed");
  }
  if (!option.empty()) absl::StrAppend(&text, ", ", option);
  return text;
}

std::string Excess(absl::string_view device, int64_t peak_bytes, int64_t memory_bytes) {
  return absl::StrFormat(
      "device %s needs %s, %s more than its memory of %s", device, base::FormatBytes(peak_bytes),
      base::FormatBytes(peak_bytes - memory_bytes), base::FormatBytes(memory_bytes));
}

bool SharesCores(const PlanEvaluation& evaluation, double cores) {
  const std::vector<schedule::StageTimes>& stages = evaluation.costs.stages;
  const bool sums =
      std::any_of(stages.begin(), stages.end(),
                  [](const schedule::StageTimes& times) { return times.reduce_ns > 0; });
  return cores < evaluation.plan().num_devices() * (sums ? 2 : 1);
}

double StepNsOnCores(const PlanEvaluation& evaluation, double cores) {
  if (!SharesCores(evaluation, cores)) return static_cast<double>(evaluation.simulation.step_ns);
  schedule::Costs costs = evaluation.costs;
  for (schedule::StageTimes& times : costs.stages) times.step_ns += times.reduce_ns;
  return SharedCoresStepNs(evaluation.plan().schedule, costs, cores / evaluation.plan().replicas());
}

absl::Status CheckFits(const CompiledPlan& compiled, const Cluster& cluster) {
  int64_t most_excess_bytes = 0;
  absl::Status status;
  for (Rank rank(0); rank.value() < compiled.plan.num_ranks(); ++rank) {
    const int64_t peak_bytes = compiled.of(rank).peak_bytes();
    const int first = compiled.plan.first_device_of(rank);
    for (int i = 0; i < compiled.plan.devices_of_rank(); ++i) {
      const ClusterDevice& device = cluster.devices[static_cast<size_t>(first + i)];
      const int64_t excess_bytes = peak_bytes - device.memory_bytes;
      if (device.memory_bytes == 0 || excess_bytes <= most_excess_bytes) continue;
      most_excess_bytes = excess_bytes;
      status = absl::ResourceExhaustedError(Excess(device.name, peak_bytes, device.memory_bytes));
    }
  }
  return status;
}

absl::Status CheckFits(const PlanEvaluation& evaluation) {
  return CheckFits(evaluation.compiled, evaluation.cluster);
}

}  // namespace stagecoach::partition
