#include "partition/search/candidates.h"

#include <algorithm>
#include <limits>
#include <set>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/exact/graph.h"
#include "partition/plan/receipt.h"
#include "partition/search/candidate_bounds.h"
#include "partition/search/groups.h"
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
    if (devices % ranks != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the schedule is for %s: %s cannot be divided evenly among them; use a multiple of %d",
          Counted(ranks, "rank"), Counted(devices, "device"), ranks));
    }
    if (const int each = devices / ranks; request_.replicas.value_or(each) != each) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "the schedule is for %s: with %s each rank has %d, not %d; ask for %s of every stage, or "
          "use %s",
          Counted(ranks, "rank"), Counted(devices, "device"), each, *request_.replicas,
          Counted(each, "replica"), Counted(int64_t{ranks} * *request_.replicas, "device")));
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
    const RankDevices group = RankDevicesOf(request_.cluster, stage.first_device, stage.devices);
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
      // Of any schedule, those that take any number say why that number does not do.
      if (refusal_.ok() && request_.schedule != kAnySchedule) {
        refusal_ = absl::InvalidArgumentError(
            absl::StrFormat("schedule %s has %s per device, not %d", generator.name,
                            Counted(generator.chunks, "stage"), candidate.chunks));
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
          absl::StrFormat("cannot cut %s into %s: use at most %s", Counted(layers, "layer"),
                          Counted(candidate.num_stages(), "stage"), Counted(layers, "stage")));
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
    const EndMemory ends = sized.ends(candidate.micro_batches);
    table = std::make_shared<const LayerTable>(std::move(sized.layers), ends,
                                               request_.profile.updates_in_backward,
                                               request_.profile.collectives);
    return table;
  }
  ASSIGN_OR_RETURN(const std::vector<int> order, OrderOf(candidate));
  SizedLayers sized = LayersAt(request_.profile, rows);
  const EndMemory ends = sized.ends(candidate.micro_batches);
  return std::make_shared<const LayerTable>(InOrder(sized.layers, request_.profile.edges, order),
                                            ends, request_.profile.updates_in_backward,
                                            request_.profile.collectives);
}

absl::StatusOr<std::vector<RankDevices>> CandidateSpace::DevicesOfRanks(const Candidate& candidate,
                                                                        double memory_share) {
  std::vector<RankDevices> groups;
  int device = 0;
  for (const int replicas : candidate.replicas) {
    RankDevices& group = groups.emplace_back(RankDevicesOf(request_.cluster, device, replicas));
    device += replicas;
    if (memory_share == kAnyMemory) group.memory_bytes = kUnlimitedBytes;
    if (group.memory_bytes != kUnlimitedBytes && memory_share != 1.0) {
      group.memory_bytes =
          static_cast<int64_t>(memory_share * static_cast<double>(group.memory_bytes));
    }
    ASSIGN_OR_RETURN(group.layers, TableOf(candidate, replicas));
  }
  return groups;
}

absl::StatusOr<Pipeline> CandidateSpace::PipelineOf(const Candidate& candidate,
                                                    const Schedule& schedule, double memory_share) {
  ASSIGN_OR_RETURN(std::vector<RankDevices> groups, DevicesOfRanks(candidate, memory_share));
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
  ASSIGN_OR_RETURN(const std::vector<RankDevices> groups, DevicesOfRanks(candidate, kAnyMemory));
  // Where steps overlap, no work waits for other work.
  const bool is_in_turn = request_.profile.is_chain() && request_.objective == PlanObjective::kStep;
  double bound_ns = SimpleBoundNs(groups, candidate.micro_batches, is_in_turn);
  // A graph is cut in one order of many: nothing holds for the others.
  if (IsInOrder(candidate) && AreEqual(candidate.replicas) && request_.profile.is_chain()) {
    ASSIGN_OR_RETURN(const double chain_ns,
                     ChainBoundNs(groups, candidate.micro_batches, request_.objective, is_fused));
    bound_ns = std::max(bound_ns, chain_ns);
  }
  const bool is_graph_bottleneck =
      !request_.profile.is_chain() && IsInOrder(candidate) && AreEqual(candidate.replicas) &&
      candidate.replicas.front() == 1 && request_.objective == PlanObjective::kBottleneck;
  if (is_graph_bottleneck) {
    ASSIGN_OR_RETURN(const GraphCut* const cut, GraphCutOf(candidate));
    if (cut->is_optimal) bound_ns = std::max(bound_ns, cut->bottleneck_ns);
  }
  bound_ns -= RoundingNs(groups, candidate.chunks, candidate.micro_batches);
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

}  // namespace stagecoach::partition
