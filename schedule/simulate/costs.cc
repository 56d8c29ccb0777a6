#include "schedule/simulate/costs.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::schedule {
namespace {

absl::Status CheckRange(const std::string& where, const char* name, int64_t value, int64_t max) {
  if (value >= 0 && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": ", name, " is ", value, ", must be in [0, ", max, "]"));
}

absl::Status CheckStage(const std::string& where, const StageTimes& times) {
  const std::pair<const char*, int64_t> durations[] = {
      {"forward_ns", times.forward_ns},
      {"backward_input_ns", times.backward_input_ns},
      {"backward_weight_ns", times.backward_weight_ns},
      {"backward_ns", times.backward_ns},
      {"reduce_ns", times.reduce_ns},
      {"step_ns", times.step_ns}};
  for (const auto& [name, ns] : durations) {
    RETURN_IF_ERROR(CheckRange(where, name, ns, kMaxTimeNs));
  }
  RETURN_IF_ERROR(CheckRange(where, "output_bytes", times.output_bytes, kMaxSizeBytes));
  RETURN_IF_ERROR(CheckRange(where, "host_copy_bytes", times.host_copy_bytes, kMaxSizeBytes));
  return CheckRange(where, "input_gradient_bytes", times.input_gradient_bytes, kMaxSizeBytes);
}

absl::Status CheckLink(const std::string& where, const Link& link) {
  RETURN_IF_ERROR(CheckRange(where, "latency_ns", link.latency_ns, kMaxTimeNs));
  // On a slower link, a message of the largest size would exceed the longest time.
  constexpr double kSlowest = 1.0;
  if (link.bytes_per_second == 0.0 || link.bytes_per_second >= kSlowest) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(where, ": bytes_per_second is ",
                                                 link.bytes_per_second,
                                                 ", must be at least 1, or 0 for no limit"));
}

// Checks the sum of the times of all actions and messages, which no time of a simulation exceeds
// under any order.
absl::Status CheckTotal(const Schedule& schedule, const Costs& costs) {
  double longest_ns = 0.0;
  int64_t largest_bytes = 0, largest_copy_bytes = 0;
  for (const StageTimes& times : costs.stages) {
    for (const int64_t ns : {times.forward_ns, times.backward_input_ns, times.backward_weight_ns,
                             times.backward_ns, times.reduce_ns}) {
      longest_ns = std::fmax(longest_ns, static_cast<double>(ns + times.step_ns));
    }
    largest_bytes = std::max({largest_bytes, times.output_bytes, times.input_gradient_bytes});
    largest_copy_bytes = std::max(largest_copy_bytes, times.host_copy_bytes);
  }
  longest_ns = std::fmax(longest_ns,
                         static_cast<double>(costs.host_link.link.TransferNs(largest_copy_bytes)));
  for (const Link& link : costs.links) {
    longest_ns = std::fmax(longest_ns, static_cast<double>(link.TransferNs(largest_bytes)));
  }
  const CollectiveTimes& collectives = costs.collectives;
  for (const int64_t ns : {collectives.ties_ns, collectives.norms_ns, collectives.results_ns}) {
    longest_ns = std::fmax(longest_ns, static_cast<double>(ns));
  }
  // Three passes, two messages and two copies for each micro-batch, and what happens once.
  const double actions = static_cast<double>(costs.stages.size()) *
                             (7.0 * static_cast<double>(schedule.num_micro_batches) + 2.0) +
                         kNumCollectiveOps;
  constexpr double kMaxTotalNs = 4e18;
  if (longest_ns * actions <= kMaxTotalNs) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("times of up to ", longest_ns, " ns for ", actions,
                   " actions add up to more than a century; give smaller ones"));
}

}  // namespace

int64_t Link::TransferNs(int64_t bytes) const {
  if (bytes_per_second == 0.0) return latency_ns;
  const double ns = std::round(1e9 * static_cast<double>(bytes) / bytes_per_second);
  return latency_ns + static_cast<int64_t>(std::fmin(ns, static_cast<double>(kMaxTimeNs)));
}

Link Costs::LinkBetween(Rank from, Rank to, int num_ranks) const {
  if (links.empty()) return {};
  if (links.size() == 1) return links[0];
  return links[static_cast<size_t>(from.value()) * static_cast<size_t>(num_ranks) +
               static_cast<size_t>(to.value())];
}

absl::Status CheckCosts(const Schedule& schedule, const Costs& costs) {
  const size_t stages = schedule.rank_of_stage.size();
  if (costs.stages.size() != stages) {
    return absl::InvalidArgumentError(absl::StrCat("the schedule has ", stages,
                                                   " stages, but the times of ",
                                                   costs.stages.size(), " are given"));
  }
  for (size_t i = 0; i < stages; ++i) {
    RETURN_IF_ERROR(CheckStage(absl::StrCat("stage ", i), costs.stages[i]));
  }
  const size_t ranks = schedule.actions.size();
  if (costs.links.size() > 1 && costs.links.size() != ranks * ranks) {
    return absl::InvalidArgumentError(absl::StrCat(costs.links.size(), " links for ", ranks,
                                                   " ranks: expected none, one for all pairs, or ",
                                                   ranks * ranks));
  }
  for (size_t i = 0; i < costs.links.size(); ++i) {
    const bool is_as_before = i > 0 && costs.links[i] == costs.links[i - 1];
    if (!is_as_before) RETURN_IF_ERROR(CheckLink(absl::StrCat("link ", i), costs.links[i]));
  }
  RETURN_IF_ERROR(CheckLink("host_link", costs.host_link.link));
  RETURN_IF_ERROR(CheckRange("collectives", "ties_ns", costs.collectives.ties_ns, kMaxTimeNs));
  RETURN_IF_ERROR(CheckRange("collectives", "norms_ns", costs.collectives.norms_ns, kMaxTimeNs));
  RETURN_IF_ERROR(
      CheckRange("collectives", "results_ns", costs.collectives.results_ns, kMaxTimeNs));
  if (!(costs.overlap_share > 0.0 && costs.overlap_share <= 1.0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("overlap_share is ", costs.overlap_share, ", must be in (0, 1]"));
  }
  RETURN_IF_ERROR(CheckTotal(schedule, costs));
  if (!costs.memory.empty() && costs.memory.size() != stages) {
    return absl::InvalidArgumentError(absl::StrCat("the schedule has ", stages,
                                                   " stages, but the memory of ",
                                                   costs.memory.size(), " is given"));
  }
  return absl::OkStatus();
}

Costs UniformCosts(const std::vector<Rank>& rank_of_stage, const DeviceTimes& device,
                   int64_t latency_ns) {
  Costs costs;
  costs.links = {{.latency_ns = latency_ns, .bytes_per_second = 0.0}};
  absl::flat_hash_map<Rank, int64_t> chunks_of;
  for (const Rank rank : rank_of_stage) ++chunks_of[rank];
  absl::flat_hash_map<Rank, int64_t> next_chunk;
  for (const Rank rank : rank_of_stage) {
    const int64_t chunks = chunks_of[rank];
    const int64_t chunk = next_chunk[rank]++;
    // The remainder of rounding goes to some chunks, so that a device's times stay exact.
    const auto before = [&](int64_t ns, int64_t k) {
      return ns / chunks * k + ns % chunks * k / chunks;
    };
    const auto share = [&](int64_t ns) { return before(ns, chunk + 1) - before(ns, chunk); };
    StageTimes times;
    times.forward_ns = share(device.forward_ns);
    times.backward_input_ns = share(device.backward_input_ns);
    times.backward_weight_ns = share(device.backward_weight_ns);
    times.backward_ns = times.backward_input_ns + times.backward_weight_ns;
    costs.stages.push_back(times);
  }
  return costs;
}

}  // namespace stagecoach::schedule
