#include "partition/search/candidates.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "partition/bounds/candidate_bounds.h"
#include "partition/bounds/step_bounds.h"
#include "partition/exact/graph.h"
#include "partition/plan/plan_evaluation.h"
#include "partition/search/starts.h"
#include "schedule/generators/generators.h"
#include "schedule/transforms/lowering.h"

namespace stagecoach::partition {
namespace {

using schedule::Generator;
using schedule::Schedule;

constexpr int64_t kMostBoundedPasses = 1 << 13;
constexpr int kMostChunks = 4;  // that are tried, where a schedule takes any number

bool IsFused(const Schedule& schedule) {
  for (schedule::StageId stage(0); stage.value() < schedule.num_stages(); ++stage) {
    if (schedule.SplitsBackward(stage)) return false;
  }
  return true;
}

// Whether all schedules of that name are: "" is the name of none.
bool IsFused(const std::string& name) {
  const absl::StatusOr<const Generator*> generator = schedule::FindGenerator(name);
  return generator.ok() && (*generator)->fuses_backward;
}

// Whether every stage keeps all outputs and all that it is given until B.
bool KeepsAll(const LayerTable& table) {
  return std::all_of(table.memory.begin(), table.memory.end(), [](const LayerMemory& memory) {
    return memory.input_last_use != schedule::LastUse::kForward &&
           memory.output_last_use != schedule::LastUse::kForward;
  });
}

}  // namespace

absl::StatusOr<CandidateSpace> CandidateSpace::Create(const PlannerRequest& request,
                                                      SearchBudget& budget,
                                                      const BoundOptions& options) {
  CandidateSpace space(request, budget, options.enough_ns);
  space.boundaries_ = request.boundaries;
  if (space.boundaries_ == nullptr) space.boundaries_ = std::make_shared<KnownBoundaries>();
  RETURN_IF_ERROR(space.Enumerate());
  if (space.candidates_.empty()) {
    return space.refusal_.ok() ? absl::InvalidArgumentError("there is nothing to choose from")
                               : space.refusal_;
  }
  for (Candidate& candidate : space.candidates_) {
    // Only where a schedule is asked for, the candidate's plans have no other one. A long one is
    // left for later: there may be a thousand numbers of devices to bound.
    const int64_t passes = int64_t{candidate.num_stages()} * candidate.micro_batches_of_each();
    const bool is_known = request.schedule != kAnySchedule &&
                          (options.makes_long_schedules || passes <= kMostBoundedPasses);
    const absl::StatusOr<Schedule> schedule =
        is_known ? space.ScheduleOf(candidate)
                 : absl::StatusOr<Schedule>(absl::NotFoundError("not needed"));
    ASSIGN_OR_RETURN(candidate.lower_bound_ns,
                     space.LowerBoundNs(candidate, schedule.ok() ? &*schedule : nullptr));
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
  for (int replicas = 1; replicas <= devices; ++replicas) {
    if (devices % replicas == 0) RETURN_IF_ERROR(AddShapes(replicas));
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
  const Replication replication = ReplicationFor(request_, replicas);
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
    // One rank gains nothing from several stages, if it has no sum over replicas to hide.
    const bool is_needless = shape.ranks == 1 && replicas == 1 && request_.schedule == kAnySchedule;
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
  candidates_.push_back(candidate);
  if (!request_.profile.is_chain()) {
    candidate.order = LayerOrder::kLeastBottleneck;
    candidates_.push_back(std::move(candidate));
  }
  return absl::OkStatus();
}

absl::StatusOr<Schedule> CandidateSpace::ScheduleOf(const Candidate& candidate) const {
  if (candidate.schedule.empty()) return *request_.given;
  return schedule::Generate(candidate.schedule, {.ranks = candidate.ranks,
                                                 .micro_batches = candidate.micro_batches_of_each(),
                                                 .chunks = candidate.chunks});
}

absl::StatusOr<std::vector<int>> CandidateSpace::OrderOf(const Candidate& candidate) {
  std::vector<int> order;
  if (request_.profile.is_chain()) return order;
  if (candidate.order == LayerOrder::kGiven) {
    order.resize(static_cast<size_t>(request_.profile.num_layers()));
    std::iota(order.begin(), order.end(), 0);
    return order;
  }
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
  ASSIGN_OR_RETURN(GraphCut cut, PartitionGraph(problem, [this] { return budget_.IsReached(); }));
  // What was found by then would be another candidate than a longer search has.
  RETURN_IF_ERROR(budget_.status());
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
  // Of the orders of cuts only the last is kept: there is one for each number of stages.
  const bool is_given = candidate.order == LayerOrder::kGiven;
  auto& [key, table] =
      ordered_tables_[{candidate.micro_batch_rows, candidate.micro_batches_of_each(),
                       candidate.replicas(), candidate.order}];
  const int stages = is_given ? 0 : candidate.num_stages();
  if (table == nullptr || key != stages) {
    key = stages;
    table = TableOf(request_.profile, candidate.micro_batch_rows, candidate.micro_batches_of_each(),
                    candidate.replication, order);
  }
  return table;
}

absl::StatusOr<CutEvaluator> CandidateSpace::EvaluatorOf(const Candidate& candidate,
                                                         const Schedule& schedule,
                                                         const Relaxation& relaxation) {
  Plan plan = {.micro_batch_rows = candidate.micro_batch_rows,
               .schedule = schedule,
               .replication = candidate.replication,
               .offload = request_.offload};
  ASSIGN_OR_RETURN(plan.order, OrderOf(candidate));
  ASSIGN_OR_RETURN(std::shared_ptr<const LayerTable> layers, LayersOf(candidate));
  if (relaxation == Relaxation()) {
    return CutEvaluator::Create(std::move(plan), layers, request_.cluster);
  }
  return CutEvaluator::Create(std::move(plan), layers, RelaxedCluster(relaxation));
}

Cluster CandidateSpace::RelaxedCluster(const Relaxation& relaxation) const {
  Cluster cluster = request_.cluster;
  for (ClusterDevice& device : cluster.devices) {
    if (device.memory_bytes == 0) device.memory_bytes = relaxation.unlimited_bytes;
    if (device.memory_bytes == 0) continue;
    const double bytes = relaxation.memory * static_cast<double>(device.memory_bytes);
    device.memory_bytes = bytes < static_cast<double>(kUnlimitedBytes)
                              ? std::max<int64_t>(static_cast<int64_t>(bytes), 1)
                              : 0;
  }
  const auto relax = [&](schedule::Link& link) {
    link.latency_ns = std::llround(static_cast<double>(link.latency_ns) / relaxation.links);
    link.bytes_per_second =
        relaxation.links == Relaxation::kUnlimited ? 0 : link.bytes_per_second * relaxation.links;
  };
  relax(cluster.within_host);
  relax(cluster.between_hosts);
  for (ClusterLink& exception : cluster.exceptions) relax(exception.link);
  return cluster;
}

absl::StatusOr<double> CandidateSpace::LowerBoundNs(const Candidate& candidate,
                                                    const Schedule* schedule) {
  const auto key =
      std::make_tuple(candidate.replicas(), candidate.num_stages(), candidate.micro_batch_rows,
                      schedule == nullptr ? std::string() : schedule->name);
  if (const auto known = bounds_.find(key); known != bounds_.end()) return known->second;
  const bool is_asked_for = request_.schedule != kAnySchedule;  // else no plan is better for it
  const bool is_fused =
      schedule != nullptr ? IsFused(*schedule) : is_asked_for && IsFused(candidate.schedule);
  ASSIGN_OR_RETURN(double bound_ns, WorkBoundNs(candidate, is_fused));
  const double rounding_ns = RoundingNs(*GivenLayersOf(candidate), SpeedsOf(candidate),
                                        candidate.chunks, candidate.micro_batches_of_each());
  // There, micro-batches may wait for each other on all ranks.
  const double step_ns =
      StepBoundNs(candidate, is_asked_for ? schedule : nullptr, is_asked_for && is_fused, bound_ns);
  bound_ns = std::max(bound_ns, step_ns - candidate.num_stages() * rounding_ns);
  return bounds_[key] = std::max(bound_ns - rounding_ns, 0.0);
}

absl::StatusOr<double> CandidateSpace::WorkBoundNs(const Candidate& candidate, bool is_fused) {
  // The simple bound holds in any order.
  const std::shared_ptr<const LayerTable> layers = GivenLayersOf(candidate);
  const std::vector<double> speeds = SpeedsOf(candidate);
  const int micro_batches = candidate.micro_batches_of_each();
  const bool is_step = request_.objective == PlanObjective::kStep;
  // Where steps overlap, no work waits for other work.
  std::vector<double>& needed_ns = boundaries_->needed_ns[candidate.micro_batch_rows];
  if (needed_ns.empty() && is_step) needed_ns = NeededNs(*layers, request_.profile.edges);
  double bound_ns = SimpleBoundNs(*layers, speeds, micro_batches, needed_ns);
  if (!IsInOrder(candidate)) return bound_ns;
  if (request_.profile.is_chain()) {
    ASSIGN_OR_RETURN(const double chain_ns,
                     ChainBoundNs(*layers, speeds, micro_batches, request_.objective));
    bound_ns = std::max(bound_ns, chain_ns);
    if (!is_fused || !is_step) return bound_ns;
    ASSIGN_OR_RETURN(const double fused_ns, FusedChainBoundNs(*layers, speeds, micro_batches));
    return std::max(bound_ns, fused_ns);
  }
  if (!is_step) {
    const absl::StatusOr<const GraphCut*> cut = GraphCutOf(candidate);
    if (!cut.ok() && !IsCutShort(cut.status())) return cut.status();
    if (cut.ok() && (*cut)->is_optimal) bound_ns = std::max(bound_ns, (*cut)->bottleneck_ns);
  }
  return bound_ns;
}

std::vector<int> CandidateSpace::InFlight(const Schedule& schedule) const {
  if (request_.offload == 0.0) return PeakStashes(schedule);
  const absl::StatusOr<Schedule> lowered = schedule::Lower(schedule, {.offload = request_.offload});
  return PeakStashes(lowered.ok() ? *lowered : schedule);
}

double CandidateSpace::StepBoundNs(const Candidate& candidate, const Schedule* schedule,
                                   bool is_fused, double at_least_ns) {
  const bool is_in_order = IsInOrder(candidate);
  const bool is_known = is_in_order || !candidate.schedule.empty();
  if (request_.objective != PlanObjective::kStep || !is_known) return at_least_ns;
  const auto key = std::make_tuple(candidate.replicas(), candidate.micro_batch_rows, is_in_order);
  if (const auto known = step_bounds_.find(key);
      schedule == nullptr && known != step_bounds_.end()) {
    return std::max(known->second, at_least_ns);
  }
  const std::shared_ptr<const LayerTable> layers = GivenLayersOf(candidate);
  const int micro_batches = candidate.micro_batches_of_each();
  std::vector<Boundary>& boundaries =
      boundaries_->of[{candidate.micro_batch_rows, micro_batches, candidate.replicas()}];
  if (boundaries.empty()) {
    boundaries = BoundariesOf(*layers, request_.profile.edges, micro_batches, candidate.replication,
                              request_.may_recompute);
  }
  StepBoundProblem problem = {.boundaries = boundaries,
                              .speeds = SpeedsOf(candidate),
                              .chunks = candidate.chunks,
                              .micro_batches = micro_batches,
                              .is_fused = is_fused,
                              .sends_block = !request_.cluster.overlaps_messages,
                              .keeps_inputs = KeepsAll(*layers)};
  const std::vector<DeviceGroup> ranks = GroupsOf(request_.cluster, candidate.replicas());
  const auto add_link = [&](const DeviceGroup& from, const DeviceGroup& to) {
    problem.forward_links.push_back(SlowestBetween(from, to, request_.cluster));
    problem.backward_links.push_back(SlowestBetween(to, from, request_.cluster));
  };
  for (size_t rank = 0; rank + 1 < ranks.size(); ++rank) add_link(ranks[rank], ranks[rank + 1]);
  if (!is_in_order && ranks.size() > 1) add_link(ranks.back(), ranks.front());
  if (schedule != nullptr) problem.in_flight = InFlight(*schedule);
  for (const DeviceGroup& rank : ranks) {
    problem.memory_bytes.push_back(static_cast<double>(rank.memory_bytes));
  }
  const double bound_ns = partition::StepBoundNs(problem, at_least_ns, enough_ns_,
                                                 [this] { return budget_.IsReached(); });
  if (schedule == nullptr) step_bounds_[key] = bound_ns;
  return bound_ns;
}

std::vector<double> CandidateSpace::SpeedsOf(const Candidate& candidate) const {
  std::vector<double> speeds;
  for (const DeviceGroup& rank : GroupsOf(request_.cluster, candidate.replicas())) {
    speeds.push_back(rank.speed);
  }
  return speeds;
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
