#include "partition/search/pipeline.h"

#include <algorithm>
#include <cmath>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace stagecoach::partition {
namespace {

using schedule::Link;
using schedule::Rank;
using schedule::StageId;
using schedule::StageMemory;

std::vector<double> SumsBefore(absl::Span<const LayerCost> layers, double LayerCost::*time) {
  std::vector<double> sums = {0.0};
  for (const LayerCost& layer : layers) sums.push_back(sums.back() + layer.*time);
  return sums;
}

// What is slower in either.
Link Slower(const Link& a, const Link& b) {
  Link slower{.latency_ns = std::max(a.latency_ns, b.latency_ns),
              .bytes_per_second = std::min(a.bytes_per_second, b.bytes_per_second)};
  // 0 is infinitely fast.
  if (a.bytes_per_second == 0) slower.bytes_per_second = b.bytes_per_second;
  if (b.bytes_per_second == 0) slower.bytes_per_second = a.bytes_per_second;
  return slower;
}

// Devices of the two groups exchange in pairs, the smaller group's devices with several each.
Link SlowestBetween(const RankDevices& from, const RankDevices& to, const Cluster& cluster) {
  Link slowest;
  const size_t pairs = std::max(from.devices.size(), to.devices.size());
  for (size_t i = 0; i < pairs; ++i) {
    slowest = Slower(slowest, cluster.LinkBetween(from.devices[i * from.devices.size() / pairs],
                                                  to.devices[i * to.devices.size() / pairs]));
  }
  return slowest;
}

Link SlowestWithin(const RankDevices& group, const Cluster& cluster) {
  Link slowest;
  for (size_t i = 0; i + 1 < group.devices.size(); ++i) {
    slowest = Slower(slowest, cluster.LinkBetween(group.devices[i], group.devices[i + 1]));
  }
  return slowest;
}

}  // namespace

RankDevices RankDevicesOf(const Cluster& cluster, int first, int count) {
  RankDevices group;
  for (int i = 0; i < count; ++i) {
    const ClusterDevice& own = cluster.devices[static_cast<size_t>(first + i)];
    group.devices.push_back(first + i);
    group.speed = i == 0 ? own.speed : std::min(group.speed, own.speed);
    if (own.memory_bytes > 0) group.memory_bytes = std::min(group.memory_bytes, own.memory_bytes);
  }
  return group;
}

LayerTable::LayerTable(std::vector<LayerCost> given, const EndMemory& end_memory,
                       bool is_updated_in_backward,
                       const schedule::CollectiveMemory& collective_memory)
    : layers(std::move(given)),
      memory(MemoryOf(layers)),
      ends(end_memory),
      updates_in_backward(is_updated_in_backward),
      collectives(collective_memory),
      forward_ns(SumsBefore(layers, &LayerCost::forward_ns)),
      backward_input_ns(SumsBefore(layers, &LayerCost::backward_input_ns)),
      backward_weight_ns(SumsBefore(layers, &LayerCost::backward_weight_ns)),
      step_ns(SumsBefore(layers, &LayerCost::step_ns)) {}

Pipeline::Pipeline(Plan plan, std::vector<RankDevices> groups, schedule::Sends sends,
                   StagePeaks peaks)
    : plan_(std::move(plan)), groups_(std::move(groups)), sends_(sends), peaks_(std::move(peaks)) {}

absl::StatusOr<Pipeline> Pipeline::Create(const schedule::Schedule& schedule,
                                          int64_t micro_batch_rows, std::vector<RankDevices> groups,
                                          const Cluster& cluster) {
  Plan plan = {.micro_batch_rows = micro_batch_rows, .schedule = schedule};
  for (const RankDevices& group : groups) {
    plan.replicas.push_back(static_cast<int>(group.devices.size()));
  }
  if (!plan.is_replicated()) plan.replicas.clear();
  const int layers = groups.front().layers->num_layers();
  if (schedule.num_stages() > layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut %d layers into %d stages: use at most %d stages", layers,
                        schedule.num_stages(), layers));
  }
  ASSIGN_OR_RETURN(LoweredPlan lowered,
                   LowerSchedules(schedule, plan.is_replicated(), cluster.transfers,
                                  groups.front().layers->collectives));
  const schedule::Sends sends =
      cluster.overlaps_messages ? schedule::SendsOf(cluster.transfers) : schedule::Sends::kBlocking;
  Pipeline pipeline(std::move(plan), std::move(groups), sends, StagePeaks(std::move(lowered)));
  for (int from = 0; from < pipeline.num_ranks(); ++from) {
    for (int to = 0; to < pipeline.num_ranks(); ++to) {
      pipeline.links_.push_back(
          from == to ? Link()
                     : SlowestBetween(pipeline.devices_of(from), pipeline.devices_of(to), cluster));
    }
  }
  pipeline.cluster_ = cluster;
  const bool is_free = std::all_of(pipeline.links_.begin(), pipeline.links_.end(),
                                   [](const Link& link) { return link == Link(); });
  if (is_free) pipeline.links_.clear();
  return pipeline;
}

// 2 (n - 1) messages of a part in n (Patarasuk and Yuan 2009).
int64_t Pipeline::ReductionNs(const RankDevices& group, const Cluster& cluster, int64_t bytes) {
  const auto count = static_cast<int64_t>(group.devices.size());
  if (count < 2) return 0;
  return 2 * (count - 1) * SlowestWithin(group, cluster).TransferNs((bytes + count - 1) / count);
}

double Pipeline::ReductionNsOf(int64_t bytes) const {
  const auto count = static_cast<double>(devices_of(0).devices.size());
  const double rate = SlowestWithin(devices_of(0), cluster_).bytes_per_second;
  if (count < 2 || rate == 0) return 0;
  return 2e9 * (count - 1) / count * static_cast<double>(bytes) / rate;
}

schedule::Link Pipeline::LinkBetween(int stage, int next_stage) const {
  if (links_.empty()) return {};
  return links_[static_cast<size_t>(rank_of(stage) * num_ranks() + rank_of(next_stage))];
}

int64_t Pipeline::MessageBytes(int from_stage, int to_stage, int64_t bytes) const {
  const auto from = static_cast<int64_t>(devices_of_stage(from_stage).devices.size());
  const auto to = static_cast<int64_t>(devices_of_stage(to_stage).devices.size());
  return from <= to ? bytes : (bytes * from + to - 1) / to;
}

bool Pipeline::is_uniform() const {
  return std::all_of(groups_.begin(), groups_.end(), [this](const RankDevices& group) {
    return group.devices.size() == groups_.front().devices.size();
  });
}

int Pipeline::Last(const Cut& cut, int stage) const {
  return stage + 1 < num_stages() ? cut.first_layer[static_cast<size_t>(stage) + 1] - 1
                                  : num_layers() - 1;
}

Plan Pipeline::PlanOf(const Cut& cut) const {
  Plan plan = plan_;
  plan.first_layer = cut.first_layer;
  plan.num_layers = num_layers();
  plan.recomputed = cut.recomputed;
  return plan;
}

StageMemory Pipeline::Memory(int first, int last, int stage,
                             absl::Span<const int> recomputed) const {
  const LayerTable& table = *devices_of_stage(stage).layers;
  const auto range =
      absl::MakeConstSpan(table.memory)
          .subspan(static_cast<size_t>(first), static_cast<size_t>(last - first + 1));
  const auto begin = std::lower_bound(recomputed.begin(), recomputed.end(), first);
  if (begin == recomputed.end() || *begin > last) {
    return LayOutStage(range, table.ends, peaks_.position(stage));
  }
  absl::InlinedVector<LayerMemory, 16> layers(range.begin(), range.end());
  for (auto layer = begin; layer != recomputed.end() && *layer <= last; ++layer) {
    layers[static_cast<size_t>(*layer - first)] =
        RecomputedMemory(table.layers[static_cast<size_t>(*layer)]);
  }
  return LayOutStage(layers, table.ends, peaks_.position(stage));
}

std::vector<StageMemory> Pipeline::Memories(const Cut& cut) const {
  std::vector<StageMemory> memory;
  for (int stage = 0; stage < num_stages(); ++stage) {
    memory.push_back(Memory(cut.first_layer[static_cast<size_t>(stage)], Last(cut, stage), stage,
                            cut.recomputed));
  }
  return memory;
}

schedule::StageTimes Pipeline::TimesOf(const Cut& cut, int stage) const {
  const RankDevices& group = devices_of_stage(stage);
  const LayerTable& table = *group.layers;
  const auto first = static_cast<size_t>(cut.first_layer[static_cast<size_t>(stage)]);
  const auto end = static_cast<size_t>(Last(cut, stage)) + 1;
  const auto sum = [&](const std::vector<double>& sums) { return sums[end] - sums[first]; };
  double again_ns = 0;
  for (const int layer : cut.recomputed) {
    if (layer < static_cast<int>(first) || layer >= static_cast<int>(end)) continue;
    again_ns += table.layers[static_cast<size_t>(layer)].forward_ns;
  }
  const auto time = [&](double ns) { return std::llround(ns / group.speed); };
  const double backward_input_ns = sum(table.backward_input_ns) + again_ns;
  const double backward_weight_ns = sum(table.backward_weight_ns);
  schedule::StageTimes times = {.forward_ns = time(sum(table.forward_ns)),
                                .backward_input_ns = time(backward_input_ns),
                                .backward_weight_ns = time(backward_weight_ns),
                                .backward_ns = time(backward_input_ns + backward_weight_ns),
                                .step_ns = time(sum(table.step_ns))};
  int64_t gradient_bytes = 0;
  for (size_t layer = first; layer < end; ++layer) {
    gradient_bytes += table.layers[layer].memory.parameter_bytes;
  }
  times.reduce_ns = ReductionNs(group, cluster_, gradient_bytes);
  if (stage + 1 < num_stages()) {
    const LayerMemory& last = table.layers[end - 1].memory;
    times.output_bytes = MessageBytes(stage, stage + 1, last.output_bytes + last.passing_bytes);
  }
  if (stage > 0) {
    times.input_gradient_bytes =
        MessageBytes(stage, stage - 1, table.layers[first].memory.input_bytes);
  }
  return times;
}

schedule::Costs Pipeline::CostsOf(const Cut& cut) const {
  schedule::Costs costs;
  for (int stage = 0; stage < num_stages(); ++stage) costs.stages.push_back(TimesOf(cut, stage));
  costs.links = links_;
  // A reduction stands between a layer's gradient and its update.
  costs.updates_in_backward = plan_.replicas.empty() && devices_of(0).layers->updates_in_backward;
  return costs;
}

absl::StatusOr<PlanReport> Pipeline::Report(const Cut& cut) const {
  std::vector<const std::vector<LayerCost>*> layers;
  for (int stage = 0; stage < num_stages(); ++stage) {
    layers.push_back(&devices_of_stage(stage).layers->layers);
  }
  return ReportPlan(PlanOf(cut), peaks_.lowered(), layers, Memories(cut));
}

absl::StatusOr<PreparedPlan> Pipeline::Prepare(const Cut& cut) const {
  PreparedPlan prepared = {.plan = PlanOf(cut), .lowered = peaks_.lowered(), .report = {}};
  ASSIGN_OR_RETURN(prepared.report, Report(cut));
  return prepared;
}

absl::StatusOr<int64_t> Pipeline::StepNs(const Cut& cut) const {
  ASSIGN_OR_RETURN(const schedule::Durations durations,
                   SimulateDurations(peaks_.lowered().training, CostsOf(cut), sends_));
  return durations.step_ns;
}

double Pipeline::BusiestNs(const Cut& cut) const {
  std::vector<double> busy_ns(static_cast<size_t>(num_ranks()));
  for (int stage = 0; stage < num_stages(); ++stage) {
    const schedule::StageTimes times = TimesOf(cut, stage);
    // BW and B + W are rounded apart.
    const int64_t backward_ns =
        std::min(times.backward_ns, times.backward_input_ns + times.backward_weight_ns);
    busy_ns[static_cast<size_t>(rank_of(stage))] +=
        static_cast<double>(micro_batches() * (times.forward_ns + backward_ns) + times.step_ns);
  }
  return *std::max_element(busy_ns.begin(), busy_ns.end());
}

double Pipeline::BottleneckNs(const Cut& cut) const {
  struct Load {
    double compute_ns = 0, receive_ns = 0, send_ns = 0;
  };
  std::vector<Load> loads(static_cast<size_t>(num_ranks()));
  const schedule::Costs costs = CostsOf(cut);
  for (int stage = 0; stage < num_stages(); ++stage) {
    const schedule::StageTimes& times = costs.stages[static_cast<size_t>(stage)];
    Load& load = loads[static_cast<size_t>(rank_of(stage))];
    load.compute_ns += static_cast<double>(
        micro_batches() * (times.forward_ns + times.backward_input_ns + times.backward_weight_ns) +
        times.reduce_ns + times.step_ns);
    if (stage + 1 == num_stages() || rank_of(stage) == rank_of(stage + 1)) continue;
    const int64_t back_bytes = costs.stages[static_cast<size_t>(stage) + 1].input_gradient_bytes;
    const auto both_ns = static_cast<double>(
        micro_batches() * (LinkBetween(stage, stage + 1).TransferNs(times.output_bytes) +
                           LinkBetween(stage + 1, stage).TransferNs(back_bytes)));
    load.send_ns += both_ns;
    loads[static_cast<size_t>(rank_of(stage + 1))].receive_ns += both_ns;
  }
  double bottleneck_ns = 0;
  for (const Load& load : loads) {
    bottleneck_ns =
        std::max(bottleneck_ns, overlaps_messages()
                                    ? std::max({load.compute_ns, load.receive_ns, load.send_ns})
                                    : load.compute_ns + load.receive_ns + load.send_ns);
  }
  return bottleneck_ns;
}

absl::StatusOr<int64_t> Pipeline::ExcessBytes(const Cut& cut) {
  int64_t excess_bytes = std::numeric_limits<int64_t>::min();
  std::vector<StageMemory> memory;
  for (Rank rank(0); rank.value() < num_ranks(); ++rank) {
    const int64_t limit_bytes = devices_of(rank.value()).memory_bytes;
    if (limit_bytes == kUnlimitedBytes) continue;
    if (memory.empty()) memory = Memories(cut);
    ASSIGN_OR_RETURN(const int64_t peak_bytes, peaks_.RankPeakBytes(rank, memory));
    excess_bytes = std::max(excess_bytes, peak_bytes - limit_bytes);
  }
  return memory.empty() ? 0 : excess_bytes;
}

}  // namespace stagecoach::partition
