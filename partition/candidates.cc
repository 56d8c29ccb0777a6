#include "partition/candidates.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <set>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/chain.h"
#include "partition/graph.h"
#include "partition/groups.h"
#include "schedule/generators.h"

namespace stagecoach::partition {
namespace {

using schedule::Generator;
using schedule::Schedule;

// With at most so many devices all ways to group them are tried; beyond that equal groups and, for
// each number of ranks, those of the fastest slowest stage (groups.h) where that takes at most so
// many costs.
constexpr int kMaxFreelyGrouped = 6;
constexpr double kMaxGroupCosts = 2e7;
constexpr int kMostChunks = 4;  // that are tried, where a schedule takes any number

// All sequences of positive numbers with that sum and length at least 1.
void AddCompositions(int sum, std::vector<int>& prefix, std::vector<std::vector<int>>& all) {
  if (sum == 0) {
    all.push_back(prefix);
    return;
  }
  for (int next = 1; next <= sum; ++next) {
    prefix.push_back(next);
    AddCompositions(sum - next, prefix, all);
    prefix.pop_back();
  }
}

std::vector<std::vector<int>> Groupings(int devices, std::optional<int> replicas) {
  std::vector<std::vector<int>> all;
  if (!replicas.has_value() && devices <= kMaxFreelyGrouped) {
    std::vector<int> prefix;
    AddCompositions(devices, prefix, all);
    return all;
  }
  for (int each = 1; each <= devices; ++each) {
    if (devices % each != 0 || (replicas.has_value() && *replicas != each)) continue;
    all.emplace_back(static_cast<size_t>(devices / each), each);
  }
  return all;
}

bool AreEqual(const std::vector<int>& counts) {
  return std::all_of(counts.begin(), counts.end(),
                     [&](int count) { return count == counts.front(); });
}

// The times of stages are rounded to whole ns; so much can be lost of those of a rank.
double RoundingNs(const std::vector<RankGroup>& groups, const Candidate& candidate) {
  const auto is_whole = [](double ns) { return ns == std::floor(ns); };
  bool is_exact = true;
  for (const RankGroup& group : groups) {
    is_exact = is_exact && group.speed == 1.0;
    for (const LayerCost& layer : group.layers->layers) {
      is_exact = is_exact && is_whole(layer.forward_ns) && is_whole(layer.backward_input_ns) &&
                 is_whole(layer.backward_weight_ns) && is_whole(layer.step_ns);
    }
  }
  const double stages = candidate.num_stages();
  return is_exact ? 0.0 : 2.0 * (candidate.chunks * candidate.micro_batches + stages);
}

// Of work that may be divided among the ranks at will, and of what must be done in turn: one
// micro-batch after another in each layer, after the layers before it and before those again.
// Unless `is_in_turn`, nothing waits. (Of a graph, no layer comes before another in every cut.)
double SimpleBoundNs(const std::vector<RankGroup>& groups, int micro_batches, bool is_in_turn) {
  double batch_ns = 0;   // on devices of the least time for each layer
  double before_ns = 0;  // F and B of the layers before, once
  double longest_ns = 0;
  const int layers = groups.front().layers->num_layers();
  for (int index = 0; index < layers; ++index) {
    double least_batch_ns = 0, least_turn_ns = 0, least_both_ns = 0;
    for (const RankGroup& group : groups) {
      const LayerCost& layer = group.layers->layers[static_cast<size_t>(index)];
      const double both_ns = (layer.forward_ns + layer.backward_input_ns) / group.speed;
      const double own_batch_ns = layer.batch_ns(micro_batches) / group.speed;
      const bool is_first = &group == &groups.front();
      least_batch_ns = is_first ? own_batch_ns : std::min(least_batch_ns, own_batch_ns);
      least_both_ns = is_first ? both_ns : std::min(least_both_ns, both_ns);
    }
    least_turn_ns = std::max(before_ns + micro_batches * least_both_ns, least_batch_ns);
    longest_ns = std::max(longest_ns, least_turn_ns);
    if (is_in_turn) before_ns += least_both_ns;
    batch_ns += least_batch_ns;
  }
  return std::max(longest_ns, batch_ns / static_cast<double>(groups.size()));
}

}  // namespace

absl::StatusOr<CandidateSpace> CandidateSpace::Create(const PlannerRequest& request) {
  CandidateSpace space(request);
  RETURN_IF_ERROR(space.Enumerate());
  if (space.candidates_.empty()) {
    return space.refusal_.ok() ? absl::InvalidArgumentError("there is nothing to choose from")
                               : space.refusal_;
  }
  for (Candidate& candidate : space.candidates_) {
    ASSIGN_OR_RETURN(candidate.lower_bound_ns, space.LowerBoundNs(candidate, /*is_fused=*/false));
  }
  std::stable_sort(
      space.candidates_.begin(), space.candidates_.end(),
      [](const Candidate& a, const Candidate& b) { return a.lower_bound_ns < b.lower_bound_ns; });
  return space;
}

absl::Status CandidateSpace::Enumerate() {
  const int devices = request_.cluster.size();
  if (request_.given.has_value()) {
    const int ranks = request_.given->num_ranks();
    if (devices % ranks != 0 || request_.replicas.value_or(devices / ranks) != devices / ranks) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the schedule is for %d ranks: %d devices cannot be divided among them", ranks, devices));
    }
    return AddShapes(std::vector<int>(static_cast<size_t>(ranks), devices / ranks));
  }
  const std::vector<std::vector<int>> groupings = Groupings(devices, request_.replicas);
  if (groupings.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%d replicas of every stage do not divide %d devices", *request_.replicas, devices));
  }
  for (const std::vector<int>& replicas : groupings) RETURN_IF_ERROR(AddShapes(replicas));
  const bool has_others = !request_.replicas.has_value() && devices > kMaxFreelyGrouped;
  has_all_groupings_ = !has_others;
  if (!has_others || !request_.profile.is_chain()) return absl::OkStatus();
  for (int ranks = 2; ranks <= std::min(devices, request_.profile.num_layers()); ++ranks) {
    const std::vector<int> replicas = UnequalGroups(ranks);
    if (!replicas.empty()) RETURN_IF_ERROR(AddShapes(replicas));
  }
  return absl::OkStatus();
}

std::vector<int> CandidateSpace::UnequalGroups(int ranks) const {
  const int layers = request_.profile.num_layers();
  const int devices = request_.cluster.size();
  const double pairs = static_cast<double>(layers) * devices;
  if (ranks * pairs * pairs > kMaxGroupCosts) return {};
  const SizedLayers& sized = request_.profile.sizes.front();
  const LayerTable table(sized.layers, {});
  const auto micro_batches =
      static_cast<double>(request_.batch_rows) / static_cast<double>(sized.micro_batch_rows);
  const auto sum = [](const std::vector<double>& sums, const GroupProblem::Stage& stage) {
    return sums[static_cast<size_t>(stage.last) + 1] - sums[static_cast<size_t>(stage.first)];
  };
  std::vector<int64_t> gradient_bytes = {0};
  for (const LayerCost& layer : sized.layers) {
    gradient_bytes.push_back(gradient_bytes.back() + layer.memory.parameter_bytes);
  }
  GroupProblem problem{.layers = layers, .devices = devices, .stages = ranks, .stage_ns = nullptr};
  problem.stage_ns = [&](const GroupProblem::Stage& stage) {
    const RankGroup group = GroupOf(request_.cluster, stage.first_device, stage.devices);
    const double work_ns =
        micro_batches * (sum(table.forward_ns, stage) + sum(table.backward_input_ns, stage) +
                         sum(table.backward_weight_ns, stage));
    const int64_t bytes = gradient_bytes[static_cast<size_t>(stage.last) + 1] -
                          gradient_bytes[static_cast<size_t>(stage.first)];
    return (work_ns / stage.devices + sum(table.step_ns, stage)) / group.speed +
           static_cast<double>(Pipeline::ReductionNs(group, request_.cluster, bytes));
  };
  const absl::StatusOr<GroupCut> cut = PartitionOverGroups(problem);
  return cut.ok() && !AreEqual(cut->devices) ? cut->devices : std::vector<int>();
}

absl::Status CandidateSpace::AddShapes(const std::vector<int>& replicas) {
  const int64_t batch = request_.batch_rows;
  if (request_.micro_batches.has_value() || request_.given.has_value()) {
    const int count =
        request_.given.has_value() ? request_.given->num_micro_batches : *request_.micro_batches;
    if (count < 1 || batch % count != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a batch of %d rows does not divide into %d equal micro-batches", batch, count));
    }
    return AddShape(replicas, batch / count);
  }
  // Rows that give the devices of some rank a size of the profile.
  std::set<int64_t> rows;
  for (const SizedLayers& size : request_.profile.sizes) {
    for (const int each : replicas) rows.insert(size.micro_batch_rows * each);
  }
  bool has_shape = false;
  for (const int64_t each : rows) {
    if (batch % each != 0) continue;
    has_shape = true;
    RETURN_IF_ERROR(AddShape(replicas, each));
  }
  if (!has_shape && refusal_.ok()) {
    refusal_ = absl::InvalidArgumentError(absl::StrFormat(
        "a batch of %d rows does not divide into micro-batches of a size that the profile has (%d "
        "rows%s)",
        batch, *rows.begin(), rows.size() > 1 ? " and others" : ""));
  }
  return absl::OkStatus();
}

absl::Status CandidateSpace::AddShape(const std::vector<int>& replicas, int64_t rows) {
  for (const int each : replicas) {
    if (rows % each == 0) continue;
    if (refusal_.ok()) {
      refusal_ = absl::InvalidArgumentError(absl::StrFormat(
          "a micro-batch of %d rows cannot be divided evenly among %d replicas", rows, each));
    }
    return absl::OkStatus();
  }
  const int64_t count = request_.batch_rows / rows;
  if (count > schedule::kMaxPasses) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a step of %d micro-batches: expected at most %d", count, schedule::kMaxPasses));
  }
  const Candidate shape = {.schedule = "",
                           .chunks = request_.chunks.value_or(0),
                           .micro_batches = static_cast<int>(count),
                           .micro_batch_rows = rows,
                           .replicas = replicas};
  if (request_.given.has_value()) {
    Candidate given = shape;
    given.chunks = request_.given->num_stages() / request_.given->num_ranks();
    return Add(given);
  }
  for (const Generator& generator : schedule::Generators()) {
    if (request_.schedule != kAnySchedule && request_.schedule != generator.name) continue;
    Candidate candidate = shape;
    candidate.schedule = std::string(generator.name);
    const bool tries_more = shape.chunks == 0 && generator.any_chunks && replicas.size() > 1;
    if (shape.chunks == 0) candidate.chunks = generator.chunks;
    // One rank gains nothing from several stages.
    const bool is_needless = replicas.size() == 1 && request_.schedule == kAnySchedule;
    if (is_needless && shape.chunks == 0 && candidate.chunks > 1) continue;
    if (!generator.any_chunks && candidate.chunks != generator.chunks) {
      if (refusal_.ok()) {
        refusal_ = absl::InvalidArgumentError(
            absl::StrFormat("schedule %s has %d stages per device, not %d", generator.name,
                            generator.chunks, candidate.chunks));
      }
      continue;
    }
    RETURN_IF_ERROR(Add(candidate));
    while (tries_more && ++candidate.chunks <= kMostChunks) RETURN_IF_ERROR(Add(candidate));
  }
  return absl::OkStatus();
}

absl::Status CandidateSpace::Add(Candidate candidate) {
  const int layers = request_.profile.num_layers();
  if (candidate.num_stages() > layers) {
    if (refusal_.ok()) {
      refusal_ = absl::InvalidArgumentError(
          absl::StrFormat("cannot cut %d layers into %d stages: use at most %d stages", layers,
                          candidate.num_stages(), layers));
    }
    return absl::OkStatus();
  }
  candidates_.push_back(std::move(candidate));
  return absl::OkStatus();
}

absl::StatusOr<Schedule> CandidateSpace::ScheduleOf(const Candidate& candidate) const {
  if (candidate.schedule.empty()) return *request_.given;
  return schedule::Generate(candidate.schedule, {.ranks = candidate.num_ranks(),
                                                 .micro_batches = candidate.micro_batches,
                                                 .chunks = candidate.chunks});
}

absl::StatusOr<std::vector<int>> CandidateSpace::OrderOf(const Candidate& candidate) {
  if (request_.profile.is_chain()) return std::vector<int>();
  ASSIGN_OR_RETURN(const GraphCut* const cut, GraphCutOf(candidate));
  return cut->order;
}

absl::StatusOr<const GraphCut*> CandidateSpace::GraphCutOf(const Candidate& candidate) {
  const auto key =
      std::make_tuple(candidate.replicas, candidate.num_stages(), candidate.micro_batch_rows);
  if (const auto known = graph_cuts_.find(key); known != graph_cuts_.end()) return &known->second;
  const SizedLayers sized = LayersAt(request_.profile, candidate.micro_batch_rows);
  GraphProblem problem;
  problem.layers = request_.profile.num_layers();
  problem.edges = request_.profile.edges;
  problem.chain.stages = candidate.num_stages();
  problem.chain.micro_batches = candidate.micro_batches;
  problem.chain.overlaps_messages = request_.cluster.overlaps_messages;
  for (const LayerCost& layer : sized.layers) {
    problem.chain.layer_ns.push_back(layer.batch_ns(candidate.micro_batches));
    problem.output_bytes.push_back(layer.memory.output_bytes);
  }
  const auto place = [&](int stage) { return stage % candidate.num_ranks(); };
  std::vector<int> first_device(candidate.replicas.size(), 0);
  for (size_t rank = 1; rank < first_device.size(); ++rank) {
    first_device[rank] = first_device[rank - 1] + candidate.replicas[rank - 1];
  }
  for (int stage = 0; stage < problem.chain.stages; ++stage) {
    const int device = first_device[static_cast<size_t>(place(stage))];
    problem.chain.speeds.push_back(request_.cluster.devices[static_cast<size_t>(device)].speed *
                                   candidate.replicas[static_cast<size_t>(place(stage))]);
    if (stage == 0) continue;
    const int before = first_device[static_cast<size_t>(place(stage - 1))];
    problem.chain.links.push_back(before == device ? schedule::Link()
                                                   : request_.cluster.LinkBetween(before, device));
  }
  ASSIGN_OR_RETURN(GraphCut cut, PartitionGraph(problem));
  return &graph_cuts_.emplace(key, std::move(cut)).first->second;
}

absl::StatusOr<std::shared_ptr<const LayerTable>> CandidateSpace::TableOf(
    const Candidate& candidate, int devices) {
  const int64_t rows = candidate.micro_batch_rows / devices;
  const bool is_chain = request_.profile.is_chain();
  if (is_chain) {
    auto& table = tables_[{rows, candidate.micro_batches, 0}];
    if (table != nullptr) return table;
    SizedLayers sized = LayersAt(request_.profile, rows);
    const LossMemory loss = sized.loss(candidate.micro_batches);
    table = std::make_shared<const LayerTable>(std::move(sized.layers), loss,
                                               request_.profile.updates_in_backward);
    return table;
  }
  ASSIGN_OR_RETURN(const std::vector<int> order, OrderOf(candidate));
  SizedLayers sized = LayersAt(request_.profile, rows);
  const LossMemory loss = sized.loss(candidate.micro_batches);
  return std::make_shared<const LayerTable>(InOrder(sized.layers, request_.profile.edges, order),
                                            loss, request_.profile.updates_in_backward);
}

absl::StatusOr<std::vector<RankGroup>> CandidateSpace::GroupsOf(const Candidate& candidate,
                                                                Memory memory) {
  std::vector<RankGroup> groups;
  int device = 0;
  for (const int replicas : candidate.replicas) {
    RankGroup& group = groups.emplace_back(GroupOf(request_.cluster, device, replicas));
    device += replicas;
    if (memory == Memory::kUnlimited) group.memory_bytes = kUnlimitedBytes;
    ASSIGN_OR_RETURN(group.layers, TableOf(candidate, replicas));
  }
  return groups;
}

absl::StatusOr<Pipeline> CandidateSpace::PipelineOf(const Candidate& candidate,
                                                    const Schedule& schedule, Memory memory) {
  ASSIGN_OR_RETURN(std::vector<RankGroup> groups, GroupsOf(candidate, memory));
  return Pipeline::Create(schedule, candidate.micro_batch_rows, std::move(groups),
                          request_.cluster);
}

double CandidateSpace::WorkBoundNs() const {
  double speed = 0;
  for (const ClusterDevice& device : request_.cluster.devices) speed += device.speed;
  double least_ns = std::numeric_limits<double>::infinity();
  for (const SizedLayers& sized : request_.profile.sizes) {
    double row_ns = 0;
    for (const LayerCost& layer : sized.layers) {
      row_ns += layer.forward_ns + layer.backward_input_ns + layer.backward_weight_ns;
    }
    least_ns = std::min(least_ns, row_ns / static_cast<double>(sized.micro_batch_rows));
  }
  // A thousandth for rows and times that are rounded.
  return 0.999 * least_ns * static_cast<double>(request_.batch_rows) / speed;
}

absl::StatusOr<double> CandidateSpace::LowerBoundNs(const Candidate& candidate, bool is_fused) {
  const auto key = std::make_tuple(candidate.replicas, candidate.micro_batch_rows,
                                   candidate.num_stages(), is_fused);
  if (const auto known = bounds_.find(key); known != bounds_.end()) return known->second;
  ASSIGN_OR_RETURN(const std::vector<RankGroup> groups, GroupsOf(candidate, Memory::kUnlimited));
  // Where steps overlap, no work waits for other work.
  const bool is_in_turn = request_.profile.is_chain() && request_.objective == PlanObjective::kStep;
  double bound_ns = SimpleBoundNs(groups, candidate.micro_batches, is_in_turn);
  // A graph is cut in one order of many: nothing holds for the others.
  if (IsInOrder(candidate) && AreEqual(candidate.replicas) && request_.profile.is_chain()) {
    ASSIGN_OR_RETURN(const double chain_ns, ChainBoundNs(candidate, groups, is_fused));
    bound_ns = std::max(bound_ns, chain_ns);
  }
  const bool is_graph_bottleneck =
      !request_.profile.is_chain() && IsInOrder(candidate) && AreEqual(candidate.replicas) &&
      candidate.replicas.front() == 1 && request_.objective == PlanObjective::kBottleneck;
  if (is_graph_bottleneck) {
    ASSIGN_OR_RETURN(const GraphCut* const cut, GraphCutOf(candidate));
    if (cut->is_optimal) bound_ns = std::max(bound_ns, cut->bottleneck_ns);
  }
  bound_ns -= RoundingNs(groups, candidate);
  return bounds_[key] = std::max(bound_ns, 0.0);
}

bool CandidateSpace::IsInOrder(const Candidate& candidate) const {
  if (candidate.chunks != 1) return false;
  if (!candidate.schedule.empty()) return true;
  const std::vector<schedule::Rank>& rank_of_stage = request_.given->rank_of_stage;
  for (size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    if (rank_of_stage[stage].value() != static_cast<int>(stage)) return false;
  }
  return rank_of_stage.size() == candidate.replicas.size();
}

// One stage per rank: the first pass of a rank waits for those of all ranks before it, and behind
// its last pass backward follow theirs.
absl::StatusOr<double> CandidateSpace::ChainBoundNs(const Candidate& candidate,
                                                    const std::vector<RankGroup>& groups,
                                                    bool is_fused) {
  const LayerTable& table = *groups.front().layers;
  const int micro_batches = candidate.micro_batches;
  double most_speed = 0;
  ChainProblem problem;
  problem.stages = candidate.num_stages();
  for (const RankGroup& group : groups) {
    problem.speeds.push_back(group.speed);
    most_speed = std::max(most_speed, group.speed);
  }
  const auto solve = [&](const std::function<double(const LayerCost&)>& layer_ns,
                         const std::function<double(size_t)>& start_ns) -> absl::StatusOr<double> {
    problem.layer_ns.clear();
    problem.start_ns.clear();
    for (size_t i = 0; i < table.layers.size(); ++i) {
      problem.layer_ns.push_back(layer_ns(table.layers[i]));
      problem.start_ns.push_back(start_ns(i) / most_speed);
    }
    ASSIGN_OR_RETURN(const ChainCut cut, PartitionChain(problem));
    return cut.bottleneck_ns;
  };
  const auto all_ns = [&](const LayerCost& layer) { return layer.batch_ns(micro_batches); };
  if (request_.objective == PlanObjective::kBottleneck)
    return solve(all_ns, [](size_t) { return 0.0; });
  ASSIGN_OR_RETURN(const double busy_ns,
                   solve(all_ns, [&](size_t i) { return table.forward_ns[i]; }));
  if (is_fused) {
    // A rank's update delays those before it only if it is part of its last backward pass.
    const bool updates_in_backward = table.updates_in_backward && candidate.replicas.front() == 1;
    ASSIGN_OR_RETURN(
        const double fused_ns,
        solve(
            [&](const LayerCost& layer) {
              return layer.batch_ns(micro_batches) - (updates_in_backward ? 0 : layer.step_ns);
            },
            [&](size_t i) {
              return table.forward_ns[i] + table.backward_input_ns[i] + table.backward_weight_ns[i];
            }));
    return std::max(busy_ns, fused_ns);
  }
  ASSIGN_OR_RETURN(const double turn_ns,
                   solve(
                       [&](const LayerCost& layer) {
                         return micro_batches * (layer.forward_ns + layer.backward_input_ns);
                       },
                       [&](size_t i) { return table.forward_ns[i] + table.backward_input_ns[i]; }));
  return std::max(busy_ns, turn_ns);
}

}  // namespace stagecoach::partition
