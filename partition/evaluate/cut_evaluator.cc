#include "partition/evaluate/cut_evaluator.h"

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

// A sharded optimizer updates only its shard. Unless updates wait for other ranks, that is part of
// the REDUCE (engine/runtime/reduction.h): returns these times, summed as those of LayerTable are.
std::vector<double> ShardSteps(const Replication& replication, bool updates_wait,
                               std::vector<LayerCost>& layers) {
  for (LayerCost& layer : layers) {
    layer.step_ns /= replication.optimizer_shards();
  }
  if (!replication.shards_optimizer || updates_wait) {
    return std::vector<double>(layers.size() + 1);
  }
  std::vector<double> reduced_ns = SumsBefore(layers, &LayerCost::step_ns);
  for (LayerCost& layer : layers) layer.step_ns = 0;
  return reduced_ns;
}

// Returns what updates read and write in the host's memory, summed as the times of LayerTable are.
std::vector<int64_t> HostBytes(absl::Span<const LayerCost> layers, const Replication& replication) {
  if (!replication.offloads_optimizer) return {};
  std::vector<int64_t> sums = {0};
  for (const LayerCost& layer : layers) {
    sums.push_back(sums.back() + layer.memory.optimizer_bytes / replication.optimizer_shards() +
                   HostValueBytes(layer.memory, replication));
  }
  return sums;
}

// Ties of layers that are put into another order.
std::vector<Tie> TiesInOrder(std::vector<Tie> ties, absl::Span<const int> order) {
  if (order.empty()) return ties;
  const auto place = [&](int layer) {
    return static_cast<int>(std::find(order.begin(), order.end(), layer) - order.begin());
  };
  for (Tie& tie : ties) {
    const auto [first, second] = std::minmax({place(tie.layer), place(tie.other_layer)});
    tie.layer = first;
    tie.other_layer = second;
  }
  return ties;
}

// At least what B and W, or BW, take: these are rounded apart.
int64_t LeastBackwardNs(const schedule::StageTimes& times) {
  return std::min(times.backward_ns, times.backward_input_ns + times.backward_weight_ns);
}

}  // namespace

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
      shared_backward_ns(SumsBefore(layers, &LayerCost::shared_backward_ns)),
      step_ns(SumsBefore(layers, &LayerCost::step_ns)),
      reduced_step_ns(layers.size() + 1),
      parameter_bytes({0}) {
  for (const LayerCost& layer : layers) {
    parameter_bytes.push_back(parameter_bytes.back() + layer.memory.parameter_bytes);
  }
}

std::shared_ptr<const LayerTable> TableOf(const Profile& profile, int64_t micro_batch_rows,
                                          int micro_batches, const Replication& replication,
                                          absl::Span<const int> order) {
  SizedLayers sized = LayersAt(profile, micro_batch_rows);
  const EndMemory ends = sized.ends(micro_batches);
  if (!order.empty()) sized.layers = InOrder(sized.layers, profile.edges, order);
  // Between a layer's gradient and its update the replicas' gradients are summed.
  const bool updates_in_backward = profile.updates_in_backward && !replication.is_needed();
  std::vector<double> reduced_ns =
      ShardSteps(replication, profile.collectives.precede_updates(), sized.layers);
  const auto table = std::make_shared<LayerTable>(std::move(sized.layers), ends,
                                                  updates_in_backward, profile.collectives);
  table->reduced_step_ns = std::move(reduced_ns);
  table->host_bytes = HostBytes(table->layers, replication);
  table->ties = TiesInOrder(profile.ties, order);
  return table;
}

CutEvaluator::CutEvaluator(Plan plan, std::shared_ptr<const LayerTable> layers,
                           std::vector<DeviceGroup> devices, schedule::Sends sends,
                           StagePeaks peaks)
    : plan_(std::move(plan)),
      layers_(std::move(layers)),
      devices_(std::move(devices)),
      sends_(sends),
      peaks_(std::move(peaks)) {}

absl::StatusOr<CutEvaluator> CutEvaluator::Create(Plan plan,
                                                  std::shared_ptr<const LayerTable> layers,
                                                  const Cluster& cluster) {
  const int num_stages = plan.schedule.num_stages();
  if (num_stages > layers->num_layers()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut %d layers into %d stages: use at most %d stages",
                        layers->num_layers(), num_stages, layers->num_layers()));
  }
  ASSIGN_OR_RETURN(LoweredSchedules lowered,
                   LowerSchedules(plan.schedule, plan.replication, cluster.transfers,
                                  layers->collectives, plan.offload));
  const schedule::Sends sends =
      cluster.overlaps_messages ? schedule::SendsOf(cluster.transfers) : schedule::Sends::kBlocking;
  std::vector<DeviceGroup> devices = GroupsOf(cluster, plan.replicas());
  CutEvaluator pipeline(std::move(plan), std::move(layers), std::move(devices), sends,
                        StagePeaks(std::move(lowered)));
  for (int from = 0; from < pipeline.num_ranks(); ++from) {
    for (int to = 0; to < pipeline.num_ranks(); ++to) {
      pipeline.links_.push_back(
          from == to ? Link()
                     : SlowestBetween(pipeline.devices_of(from), pipeline.devices_of(to), cluster));
    }
  }
  pipeline.host_link_ = cluster.host_link;
  pipeline.moves_stashes_ = pipeline.training().MovesStashes();
  const bool is_free = std::all_of(pipeline.links_.begin(), pipeline.links_.end(),
                                   [](const Link& link) { return link == Link(); });
  if (is_free) pipeline.links_.clear();
  return pipeline;
}

// Each device sends to every other one its part in n of the gradients to be summed, of each of its
// sums, and then its own part of the result: with one sum, 2 (n - 1) messages of a part in n, as
// many bytes as a ring takes (Patarasuk and Yuan 2009).
int64_t CutEvaluator::GatherNs(int rank, int64_t bytes) const {
  const int64_t count = replication().replicas;
  if (count < 2) return 0;
  return (count - 1) * devices_of(rank).link.TransferNs((bytes + count - 1) / count);
}

double CutEvaluator::ReductionNsOf(int64_t bytes) const {
  const double count = replication().replicas;
  const double rate = devices_of(0).link.bytes_per_second;
  if (count < 2 || rate == 0) return 0;
  const double sent = CountSums(replication()).most + 1;
  return 1e9 * sent * (count - 1) / count * static_cast<double>(bytes) / rate;
}

int64_t CutEvaluator::HostUpdateNs(size_t first, size_t end) const {
  const std::vector<int64_t>& bytes = layers().host_bytes;
  // The memory of a CPU device is the host's.
  if (bytes.empty() || host_link_.occupies_rank) return 0;
  return host_link_.link.TransferNs(bytes[end] - bytes[first]);
}

schedule::Link CutEvaluator::LinkBetween(int stage, int next_stage) const {
  if (links_.empty()) return {};
  return links_[static_cast<size_t>(rank_of(stage) * num_ranks() + rank_of(next_stage))];
}

int CutEvaluator::Last(const Cut& cut, int stage) const {
  return stage + 1 < num_stages() ? cut.first_layer[static_cast<size_t>(stage) + 1] - 1
                                  : num_layers() - 1;
}

Plan CutEvaluator::PlanOf(const Cut& cut) const {
  Plan plan = plan_;
  plan.first_layer = cut.first_layer;
  plan.num_layers = num_layers();
  plan.recomputed = cut.recomputed;
  return plan;
}

StageMemory CutEvaluator::Memory(int first, int last, int stage,
                                 absl::Span<const int> recomputed) const {
  const LayerTable& table = layers();
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

std::vector<StageMemory> CutEvaluator::Memories(const Cut& cut) const {
  std::vector<StageMemory> memory;
  for (int stage = 0; stage < num_stages(); ++stage) {
    memory.push_back(Memory(cut.first_layer[static_cast<size_t>(stage)], Last(cut, stage), stage,
                            cut.recomputed));
  }
  return memory;
}

schedule::StageTimes CutEvaluator::TimesOf(const Cut& cut, int stage) const {
  const LayerTable& table = layers();
  const auto first = static_cast<size_t>(cut.first_layer[static_cast<size_t>(stage)]);
  const auto end = static_cast<size_t>(Last(cut, stage)) + 1;
  const auto sum = [&](const std::vector<double>& sums) { return sums[end] - sums[first]; };
  double again_ns = 0;
  for (auto layer =
           std::lower_bound(cut.recomputed.begin(), cut.recomputed.end(), static_cast<int>(first));
       layer != cut.recomputed.end() && *layer < static_cast<int>(end); ++layer) {
    again_ns += table.layers[static_cast<size_t>(*layer)].again_ns();
  }
  const double speed = devices_of_stage(stage).speed;
  const auto time = [&](double ns) { return std::llround(ns / speed); };
  const double backward_input_ns = sum(table.backward_input_ns) + again_ns;
  const double backward_weight_ns = sum(table.backward_weight_ns);
  schedule::StageTimes times = {
      .forward_ns = time(sum(table.forward_ns)),
      .backward_input_ns = time(backward_input_ns),
      .backward_weight_ns = time(backward_weight_ns),
      .backward_ns = time(backward_input_ns + backward_weight_ns - sum(table.shared_backward_ns)),
      .step_ns = time(sum(table.step_ns))};
  const int64_t gradient_bytes = table.parameter_bytes[end] - table.parameter_bytes[first];
  times.reduce_ns = ReductionNs(rank_of(stage), gradient_bytes) + time(sum(table.reduced_step_ns));
  const bool shards = replication().shards_optimizer;
  // What a STEP updates, it hands out then.
  const bool gathers_in_step = shards && table.collectives.precede_updates();
  if (gathers_in_step) times.step_ns += GatherNs(rank_of(stage), gradient_bytes);
  (shards && !gathers_in_step ? times.reduce_ns : times.step_ns) += HostUpdateNs(first, end);
  if (stage + 1 < num_stages()) {
    const LayerMemory& last = table.layers[end - 1].memory;
    times.output_bytes = last.output_bytes + last.passing_bytes;
  }
  if (stage > 0) times.input_gradient_bytes = table.layers[first].memory.input_bytes;
  return times;
}

// The two ranks of a tie send each other its gradient, and add it meanwhile.
int64_t CutEvaluator::TiesNs(const Cut& cut) const {
  if (links_.empty()) return 0;
  const auto rank_of_layer = [&](int layer) {
    const auto next = std::upper_bound(cut.first_layer.begin(), cut.first_layer.end(), layer);
    return rank_of(static_cast<int>(next - cut.first_layer.begin()) - 1);
  };
  std::vector<int64_t> busy_ns(static_cast<size_t>(num_ranks()));
  for (const Tie& tie : layers().ties) {
    const int first = rank_of_layer(tie.layer), second = rank_of_layer(tie.other_layer);
    if (first == second) continue;
    const int64_t ns =
        links_[static_cast<size_t>(first * num_ranks() + second)].TransferNs(tie.bytes);
    for (const int rank : {first, second}) busy_ns[static_cast<size_t>(rank)] += ns;
  }
  return *std::max_element(busy_ns.begin(), busy_ns.end());
}

schedule::Costs CutEvaluator::CostsOf(const Cut& cut) const {
  schedule::Costs costs;
  for (int stage = 0; stage < num_stages(); ++stage) costs.stages.push_back(TimesOf(cut, stage));
  if (moves_stashes_) {
    const std::vector<StageMemory> memory = Memories(cut);
    for (size_t stage = 0; stage < memory.size(); ++stage) {
      costs.stages[stage].host_copy_bytes =
          memory[stage].stash_bytes + memory[stage].weight_stash_bytes;
    }
  }
  costs.links = links_;
  costs.host_link = host_link_;
  costs.collectives.ties_ns = TiesNs(cut);
  costs.updates_in_backward = layers().updates_in_backward;
  return costs;
}

absl::StatusOr<CompiledPlan> CutEvaluator::Compile(const Cut& cut) const {
  return CompileLowered(PlanOf(cut), peaks_.lowered(), layers().layers, Memories(cut));
}

absl::StatusOr<int64_t> CutEvaluator::StepNs(const Cut& cut) const {
  ASSIGN_OR_RETURN(const schedule::Durations durations,
                   SimulateDurations(peaks_.lowered()->training, CostsOf(cut), sends_));
  return durations.step_ns;
}

double CutEvaluator::BusiestNs(const Cut& cut) const {
  std::vector<double> busy_ns(static_cast<size_t>(num_ranks()));
  for (int stage = 0; stage < num_stages(); ++stage) {
    const schedule::StageTimes times = TimesOf(cut, stage);
    busy_ns[static_cast<size_t>(rank_of(stage))] += static_cast<double>(
        micro_batches() * (times.forward_ns + LeastBackwardNs(times)) + times.step_ns);
  }
  return *std::max_element(busy_ns.begin(), busy_ns.end());
}

double CutEvaluator::BottleneckNs(const Cut& cut) const {
  struct Load {
    double compute_ns = 0, receive_ns = 0, send_ns = 0, reduce_ns = 0;
  };
  std::vector<Load> loads(static_cast<size_t>(num_ranks()));
  const schedule::Costs costs = CostsOf(cut);
  for (int stage = 0; stage < num_stages(); ++stage) {
    const schedule::StageTimes& times = costs.stages[static_cast<size_t>(stage)];
    Load& load = loads[static_cast<size_t>(rank_of(stage))];
    load.compute_ns += static_cast<double>(
        micro_batches() * (times.forward_ns + LeastBackwardNs(times)) + times.step_ns);
    load.reduce_ns += static_cast<double>(times.reduce_ns);
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
    const auto [compute_ns, receive_ns, send_ns, reduce_ns] = load;
    bottleneck_ns = std::max(
        bottleneck_ns, overlaps_messages() ? std::max({compute_ns, receive_ns, send_ns, reduce_ns})
                                           : compute_ns + receive_ns + send_ns + reduce_ns);
  }
  return bottleneck_ns;
}

absl::StatusOr<int64_t> CutEvaluator::ExcessBytes(const Cut& cut) {
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
