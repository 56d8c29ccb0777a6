#include "partition/search/candidates.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/exact/graph.h"
#include "partition/plan/receipt.h"
#include "partition/search/candidate_bounds.h"
#include "schedule/generators.h"

namespace stagecoach::partition {
namespace {

using schedule::Generator;
using schedule::Schedule;

constexpr int kMostChunks = 4;  // that are tried, where a schedule takes any number

}  // namespace

absl::StatusOr<CandidateSpace> CandidateSpace::Create(const PlannerRequest& request,
                                                      Cutoff& cutoff) {
  CandidateSpace space(request, cutoff);
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
    RETURN_IF_ERROR(CheckTrains(*request_.given));
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
    return AddShapes(devices / ranks);
  }
  if (request_.replicas.has_value()) {
    if (*request_.replicas < 1 || devices % *request_.replicas != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%d replicas of every stage do not divide %d devices", *request_.replicas, devices));
    }
    return AddShapes(*request_.replicas);
  }
  for (int replicas = 1; devices % replicas == 0; replicas *= 2) {
    RETURN_IF_ERROR(AddShapes(replicas));
  }
  return absl::OkStatus();
}

absl::Status CandidateSpace::AddShapes(int replicas) {
  const int64_t batch = request_.batch_rows;
  std::optional<int64_t> count = request_.micro_batches;
  if (request_.given.has_value()) {
    const int64_t of_given = int64_t{replicas} * request_.given->num_micro_batches;
    if (count.value_or(of_given) != of_given) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%d micro-batches are asked for, but the schedule is for %d, and there "
          "%s: ask for %d, or leave it open",
          *count, request_.given->num_micro_batches,
          replicas == 1 ? "is 1 replica" : absl::StrCat("are ", replicas, " replicas"), of_given));
    }
    count = of_given;
  }
  if (count.has_value()) {
    if (*count < 1 || batch % *count != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "a batch of %d rows does not divide into %d equal micro-batches", batch, *count));
    }
    return AddShape(replicas, batch / *count);
  }
  bool has_shape = false;
  for (const SizedLayers& size : request_.profile.sizes) {
    if (batch % size.micro_batch_rows != 0) continue;
    has_shape = true;
    RETURN_IF_ERROR(AddShape(replicas, size.micro_batch_rows));
  }
  if (!has_shape && refusal_.ok()) {
    refusal_ = absl::InvalidArgumentError(absl::StrFormat(
        "a batch of %d rows does not divide into micro-batches of a size that the profile has (%d "
        "rows%s)",
        batch, request_.profile.sizes.front().micro_batch_rows,
        request_.profile.sizes.size() > 1 ? " and others" : ""));
  }
  return absl::OkStatus();
}

absl::Status CandidateSpace::AddShape(int replicas, int64_t rows) {
  const int64_t count = request_.batch_rows / rows;
  if (count > schedule::kMaxPasses) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a step of %d micro-batches: expected at most %d", count, schedule::kMaxPasses));
  }
  // One replica is just another choice only where there could be two.
  const bool may_be_two = !request_.replicas.has_value() && !request_.given.has_value() &&
                          request_.cluster.size() % 2 == 0;
  const bool is_replicated = replicas > 1 || !may_be_two;
  const Replication replication = WithPartsFor(
      request_.cluster.transfers, {replicas, request_.gradient_blocks.value_or(replicas),
                                   request_.shards_optimizer && is_replicated,
                                   is_replicated ? request_.reduction : ReductionKind::kTree});
  if (const absl::Status status = CheckReplication(replication, count); !status.ok()) {
    refusal_.Update(status);
    return absl::OkStatus();
  }
  const Candidate shape = {.schedule = "",
                           .chunks = request_.chunks.value_or(0),
                           .ranks = request_.cluster.size() / replicas,
                           .replication = replication,
                           .micro_batches = static_cast<int>(count),
                           .micro_batch_rows = rows};
  if (request_.given.has_value()) {
    Candidate given = shape;
    given.chunks = request_.given->num_stages() / request_.given->num_ranks();
    return Add(given);
  }
  for (const Generator& generator : schedule::Generators()) {
    if (request_.schedule != kAnySchedule && request_.schedule != generator.name) continue;
    Candidate candidate = shape;
    candidate.schedule = std::string(generator.name);
    const bool tries_more = shape.chunks == 0 && generator.any_chunks && shape.ranks > 1;
    if (shape.chunks == 0) candidate.chunks = generator.chunks;
    // One rank gains nothing from several stages.
    const bool is_needless = shape.ranks == 1 && request_.schedule == kAnySchedule;
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
  return schedule::Generate(candidate.schedule, {.ranks = candidate.ranks,
                                                 .micro_batches = candidate.micro_batches_of_each(),
                                                 .chunks = candidate.chunks});
}

absl::StatusOr<std::vector<int>> CandidateSpace::OrderOf(const Candidate& candidate) {
  if (request_.profile.is_chain()) return std::vector<int>();
  ASSIGN_OR_RETURN(const GraphCut* const cut, GraphCutOf(candidate));
  return cut->order;
}

absl::StatusOr<const GraphCut*> CandidateSpace::GraphCutOf(const Candidate& candidate) {
  const auto key =
      std::make_tuple(candidate.replicas(), candidate.num_stages(), candidate.micro_batch_rows);
  if (const auto known = graph_cuts_.find(key); known != graph_cuts_.end()) return &known->second;
  const SizedLayers sized = LayersAt(request_.profile, candidate.micro_batch_rows);
  GraphProblem problem;
  problem.layers = request_.profile.num_layers();
  problem.edges = request_.profile.edges;
  problem.chain.stages = candidate.num_stages();
  problem.chain.micro_batches = candidate.micro_batches_of_each();
  problem.chain.overlaps_messages = request_.cluster.overlaps_messages;
  for (const LayerCost& layer : sized.layers) {
    problem.chain.layer_ns.push_back(layer.batch_ns(candidate.micro_batches_of_each()));
    problem.output_bytes.push_back(layer.memory.output_bytes);
  }
  const std::vector<DeviceGroup> ranks = GroupsOf(request_.cluster, candidate.replicas());
  const auto devices_of_stage = [&](int stage) -> const DeviceGroup& {
    return ranks[static_cast<size_t>(stage % candidate.ranks)];
  };
  for (int stage = 0; stage < problem.chain.stages; ++stage) {
    problem.chain.speeds.push_back(devices_of_stage(stage).speed);
    if (stage == 0) continue;
    const int before = devices_of_stage(stage - 1).devices.front();
    const int device = devices_of_stage(stage).devices.front();
    problem.chain.links.push_back(before == device ? schedule::Link()
                                                   : request_.cluster.LinkBetween(before, device));
  }
  ASSIGN_OR_RETURN(GraphCut cut, PartitionGraph(problem, [this] { return cutoff_.IsReached(); }));
  return &graph_cuts_.emplace(key, std::move(cut)).first->second;
}

std::shared_ptr<const LayerTable> CandidateSpace::GivenLayersOf(const Candidate& candidate) {
  auto& table = tables_[{candidate.micro_batch_rows, candidate.micro_batches_of_each(),
                         candidate.replicas()}];
  if (table == nullptr) {
    table = TableOf(request_.profile, candidate.micro_batch_rows, candidate.micro_batches_of_each(),
                    candidate.replication, /*order=*/{});
  }
  return table;
}

absl::StatusOr<std::shared_ptr<const LayerTable>> CandidateSpace::LayersOf(
    const Candidate& candidate) {
  ASSIGN_OR_RETURN(const std::vector<int> order, OrderOf(candidate));
  if (order.empty()) return GivenLayersOf(candidate);
  return TableOf(request_.profile, candidate.micro_batch_rows, candidate.micro_batches_of_each(),
                 candidate.replication, order);
}

absl::StatusOr<Pipeline> CandidateSpace::PipelineOf(const Candidate& candidate,
                                                    const Schedule& schedule, double memory_share) {
  Plan plan = {.micro_batch_rows = candidate.micro_batch_rows,
               .schedule = schedule,
               .replication = candidate.replication};
  ASSIGN_OR_RETURN(plan.order, OrderOf(candidate));
  ASSIGN_OR_RETURN(std::shared_ptr<const LayerTable> layers, LayersOf(candidate));
  if (memory_share == 1.0) return Pipeline::Create(std::move(plan), layers, request_.cluster);
  Cluster cluster = request_.cluster;
  for (ClusterDevice& device : cluster.devices) {
    if (device.memory_bytes == 0) continue;
    const double bytes = memory_share * static_cast<double>(device.memory_bytes);
    device.memory_bytes =
        memory_share == kAnyMemory ? 0 : std::max<int64_t>(static_cast<int64_t>(bytes), 1);
  }
  return Pipeline::Create(std::move(plan), layers, cluster);
}

absl::StatusOr<double> CandidateSpace::LowerBoundNs(const Candidate& candidate, bool is_fused) {
  const auto key = std::make_tuple(candidate.replicas(), candidate.num_stages(),
                                   candidate.micro_batch_rows, is_fused);
  if (const auto known = bounds_.find(key); known != bounds_.end()) return known->second;
  // The simple bound holds in any order.
  const std::shared_ptr<const LayerTable> layers = GivenLayersOf(candidate);
  std::vector<double> speeds;
  for (const DeviceGroup& rank : GroupsOf(request_.cluster, candidate.replicas())) {
    speeds.push_back(rank.speed);
  }
  const int micro_batches = candidate.micro_batches_of_each();
  const double rounding_ns = RoundingNs(*layers, speeds, candidate.chunks, micro_batches);
  const bool is_chain_in_order = IsInOrder(candidate) && request_.profile.is_chain();
  if (is_fused) {
    ASSIGN_OR_RETURN(double bound_ns, LowerBoundNs(candidate, /*is_fused=*/false));
    if (is_chain_in_order && request_.objective == PlanObjective::kStep) {
      ASSIGN_OR_RETURN(const double fused_ns, FusedChainBoundNs(*layers, speeds, micro_batches));
      bound_ns = std::max(bound_ns, fused_ns - rounding_ns);
    }
    return bounds_[key] = bound_ns;
  }
  // Where steps overlap, no work waits for other work.
  const bool is_in_turn = request_.profile.is_chain() && request_.objective == PlanObjective::kStep;
  double bound_ns = SimpleBoundNs(*layers, speeds, micro_batches, is_in_turn);
  // A graph is cut in one order of many: nothing holds for the others.
  if (is_chain_in_order) {
    ASSIGN_OR_RETURN(const double chain_ns,
                     ChainBoundNs(*layers, speeds, micro_batches, request_.objective));
    bound_ns = std::max(bound_ns, chain_ns);
  }
  if (IsInOrder(candidate) && !request_.profile.is_chain() &&
      request_.objective == PlanObjective::kBottleneck) {
    ASSIGN_OR_RETURN(const GraphCut* const cut, GraphCutOf(candidate));
    if (cut->is_optimal) bound_ns = std::max(bound_ns, cut->bottleneck_ns);
  }
  return bounds_[key] = std::max(bound_ns - rounding_ns, 0.0);
}

bool CandidateSpace::IsInOrder(const Candidate& candidate) const {
  if (candidate.chunks != 1) return false;
  if (!candidate.schedule.empty()) return true;
  const std::vector<schedule::Rank>& rank_of_stage = request_.given->rank_of_stage;
  for (size_t stage = 0; stage < rank_of_stage.size(); ++stage) {
    if (rank_of_stage[stage].value() != static_cast<int>(stage)) return false;
  }
  return static_cast<int>(rank_of_stage.size()) == candidate.ranks;
}

}  // namespace stagecoach::partition
