#include "schedule/search/order_problem.h"

#include <algorithm>
#include <limits>

namespace stagecoach::schedule {

OrderProblem::OrderProblem(const AutomaticRequest& request)
    : ranks(request.ranks),
      stages(request.ranks * request.chunks),
      micro_batches(request.micro_batches),
      objective(request.objective),
      stages_of_rank(static_cast<size_t>(request.ranks)),
      stash(request.stash),
      limit(request.stash_limit) {
  const std::vector<Rank> placed = PlaceStages(request.placement, ranks, request.chunks);
  for (int s = 0; s < stages; ++s) {
    rank_of_stage.push_back(placed[static_cast<size_t>(s)].value());
    stages_of_rank[static_cast<size_t>(rank_of_stage.back())].push_back(s);
  }
  if (limit.empty()) {
    limit.assign(static_cast<size_t>(ranks), std::numeric_limits<double>::infinity());
    stash.assign(static_cast<size_t>(stages), StageStash{0.0, 0.0});
  }
  // Less than CheckStash tolerates, more than the rounding of sums of shares.
  for (double& most : limit) most *= 1.0 + 5e-10;
  after_list.assign(static_cast<size_t>(ranks), 0);
  const size_t n = static_cast<size_t>(num_passes());
  duration.resize(n);
  fused_duration.resize(n);
  producer.assign(n, kNoPass);
  transfer.assign(n, 0);
  consumer.assign(n, kNoPass);
  rank_of.resize(n);
  const auto connect = [&](PassId from, PassId to, int64_t bytes) {
    const int sender = rank_of_stage[static_cast<size_t>(StageOf(from))];
    const int receiver = rank_of_stage[static_cast<size_t>(StageOf(to))];
    producer[static_cast<size_t>(to)] = from;
    consumer[static_cast<size_t>(from)] = to;
    if (sender == receiver) return;
    transfer[static_cast<size_t>(to)] =
        request.costs.LinkBetween(Rank(sender), Rank(receiver), ranks).TransferNs(bytes);
  };
  for (int s = 0; s < stages; ++s) {
    const StageTimes& times = request.costs.of(StageId(s));
    const int64_t step = times.step_ns;
    if (!request.costs.updates_in_backward) {
      after_list[static_cast<size_t>(rank_of_stage[static_cast<size_t>(s)])] += step;
    }
    const StageStash& kept = stash[static_cast<size_t>(s)];
    gains_by_fusing.push_back(times.backward_ns <
                                  times.backward_input_ns + times.backward_weight_ns ||
                              kept.weight > kept.forward);
    for (int i = 0; i < micro_batches; ++i) {
      const PassId f = Pass(PassKind::kForward, s, i);
      const PassId b = Pass(PassKind::kBackward, s, i);
      const PassId w = Pass(PassKind::kWeight, s, i);
      duration[static_cast<size_t>(f)] = fused_duration[static_cast<size_t>(f)] = times.forward_ns;
      duration[static_cast<size_t>(b)] = times.backward_input_ns;
      const bool updates = request.costs.updates_in_backward && i == micro_batches - 1;
      duration[static_cast<size_t>(w)] = times.backward_weight_ns + (updates ? step : 0);
      fused_duration[static_cast<size_t>(b)] = times.backward_ns + (updates ? step : 0);
      for (const PassId pass : {f, b, w}) {
        rank_of[static_cast<size_t>(pass)] = rank_of_stage[static_cast<size_t>(s)];
      }
      if (s == 0) continue;
      const StageTimes& previous = request.costs.of(StageId(s - 1));
      connect(Pass(PassKind::kForward, s - 1, i), f, previous.output_bytes);
      connect(b, Pass(PassKind::kBackward, s - 1, i), times.input_gradient_bytes);
    }
  }
}

double OrderProblem::StashChange(PassId pass, const FusedPasses& fused) const {
  const StageStash& kept = stash[static_cast<size_t>(StageOf(pass))];
  switch (KindOf(pass)) {
    case PassKind::kForward:
      return kept.forward;
    case PassKind::kBackward:
      return IsFused(pass, fused) ? -kept.forward : kept.weight - kept.forward;
    case PassKind::kWeight:
      return -kept.weight;
  }
  return 0.0;
}

FusedPasses OrderProblem::FuseFirst(int count) const {
  FusedPasses fused(static_cast<size_t>(stages * micro_batches), 0);
  for (int s = 0; s < stages; ++s) {
    if (!gains_by_fusing[static_cast<size_t>(s)]) continue;
    std::fill_n(fused.begin() + Pass(PassKind::kForward, s, 0), count, uint8_t{1});
  }
  return fused;
}

double OrderProblem::StashToFinish(int rank, int micro_batch, size_t forwards, size_t backwards,
                                   const FusedPasses& fused) const {
  const std::vector<int>& on_rank = stages_of_rank[static_cast<size_t>(rank)];
  double kept = 0.0;
  for (size_t i = forwards; i < on_rank.size(); ++i) {
    kept += stash[static_cast<size_t>(on_rank[i])].forward;
  }
  double most = kept;
  for (size_t i = on_rank.size() - backwards; i-- > 0;) {
    const PassId pass = Pass(PassKind::kBackward, on_rank[i], micro_batch);
    most = std::max(most, kept + StashChange(pass, fused));
    kept -= stash[static_cast<size_t>(on_rank[i])].forward;
  }
  return most;
}

std::vector<int64_t> OrderProblem::DurationsIf(const FusedPasses& fused) const {
  std::vector<int64_t> durations = duration;
  const auto first = static_cast<size_t>(Pass(PassKind::kBackward, 0, 0));
  for (size_t i = 0; i < fused.size(); ++i) {
    if (fused[i] != 0) durations[first + i] = fused_duration[first + i];
  }
  return durations;
}

Schedule OrderProblem::ToSchedule(const Order& order) const {
  Schedule schedule;
  schedule.name = "auto";
  schedule.num_micro_batches = micro_batches;
  for (const int rank : rank_of_stage) schedule.rank_of_stage.emplace_back(rank);
  for (const std::vector<PassId>& list : order.lists) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    actions.reserve(list.size());
    for (const PassId pass : list) {
      Op op = Op::kForward;
      if (KindOf(pass) == PassKind::kWeight) op = Op::kBackwardWeight;
      if (KindOf(pass) == PassKind::kBackward) {
        op = IsFused(pass, order.fused) ? Op::kBackward : Op::kBackwardInput;
      }
      actions.push_back({.op = op,
                         .stage = StageId(StageOf(pass)),
                         .micro_batch = MicroBatch(MicroBatchOf(pass))});
    }
  }
  return schedule;
}

}  // namespace stagecoach::schedule
