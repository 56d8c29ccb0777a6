#include "partition/plan/split_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "schedule/transforms/split_stages.h"

namespace stagecoach::partition {
namespace {

// Returns the first layers of the parts of the layers [first, last].
std::vector<int> PartsOf(absl::Span<const LayerCost> layers, int first, int last) {
  const auto bytes_of = [&](int layer) {
    return layers[static_cast<size_t>(layer)].memory.parameter_bytes;
  };
  int64_t all_bytes = 0;
  for (int layer = first; layer <= last; ++layer) all_bytes += bytes_of(layer);
  const int64_t parts = std::clamp<int64_t>(all_bytes / kLeastPartBytes, 1, kMostParts);
  std::vector<int> starts = {first};
  int64_t before_bytes = 0;
  for (int layer = first; layer < last; ++layer) {
    before_bytes += bytes_of(layer);
    const auto done = static_cast<int64_t>(starts.size());
    if (done < parts && before_bytes * parts >= done * all_bytes) starts.push_back(layer + 1);
  }
  return starts;
}

}  // namespace

Plan SplitForReduction(const Plan& plan, absl::Span<const LayerCost> layers) {
  if (!plan.replication.is_needed() || !plan.trains()) return plan;
  std::vector<int> first_layer, parts;
  for (int stage = 0; stage < plan.num_stages(); ++stage) {
    const std::vector<int> starts = PartsOf(layers, plan.first(stage), plan.last(stage));
    parts.push_back(static_cast<int>(starts.size()));
    first_layer.insert(first_layer.end(), starts.begin(), starts.end());
  }
  absl::StatusOr<schedule::Schedule> split = schedule::SplitStages(plan.schedule, parts);
  if (!split.ok()) return plan;
  Plan divided = plan;
  divided.first_layer = std::move(first_layer);
  divided.schedule = *std::move(split);
  return divided;
}

}  // namespace stagecoach::partition
