#include "schedule/search/list_scheduling.h"

#include <algorithm>
#include <utility>

namespace stagecoach::schedule {

ListScheduler::ListScheduler(const OrderProblem& problem) : problem_(problem) {}

void ListScheduler::Reset(const ListPolicy& policy) {
  policy_ = &policy;
  arrival_.assign(static_cast<size_t>(problem_.num_passes()), kNever);
  for (int i = 0; i < problem_.micro_batches; ++i) {
    arrival_[static_cast<size_t>(problem_.Pass(PassKind::kForward, 0, i))] = 0;
  }
  stage_.assign(static_cast<size_t>(problem_.stages), StageState{});
  rank_.assign(static_cast<size_t>(problem_.ranks), RankState{0, 0, kNever, 0.0, 0});
  order_.lists.assign(static_cast<size_t>(problem_.ranks), {});
  order_.fused = problem_.FuseFirst(policy.fused);
  to_perform_ = arrival_.size();
  for (size_t s = 0; s < stage_.size(); ++s) {
    if (!problem_.gains_by_fusing[s]) continue;
    stage_[s].next_weight = policy.fused;
    to_perform_ -= static_cast<size_t>(policy.fused);
  }
  duration_ = problem_.DurationsIf(order_.fused);
}

std::optional<Order> ListScheduler::Run(const ListPolicy& policy) {
  Reset(policy);
  while (true) {
    size_t next = 0;
    for (size_t r = 1; r < rank_.size(); ++r) {
      if (rank_[r].wake_at < rank_[next].wake_at) next = r;
    }
    if (rank_[next].wake_at == kNever) break;
    Decide(static_cast<int>(next), rank_[next].wake_at);
  }
  if (to_perform_ > 0) return std::nullopt;
  Finish();
  return std::move(order_);
}

void ListScheduler::Finish() {
  int64_t span = 0;
  int64_t step = 0;
  int64_t sum = 0;
  for (size_t r = 0; r < rank_.size(); ++r) {
    const int64_t end = rank_[r].free_at + problem_.after_list[r];
    if (rank_[r].first_start != kNever) span = std::max(span, end - rank_[r].first_start);
    step = std::max(step, end);
    sum += end;
  }
  const bool by_span = problem_.objective == OrderObjective::kSpan;
  score_ = {by_span ? span : step, by_span ? step : span, sum};
}

void ListScheduler::Decide(int rank, int64_t now) {
  RankState& state = rank_[static_cast<size_t>(rank)];
  int64_t next_arrival = kNever;
  bool blocked = false;
  const PassId backward = Choose(PassKind::kBackward, rank, now, next_arrival, blocked);
  const PassId forward = Choose(PassKind::kForward, rank, now, next_arrival, blocked);
  const PassId weight = ChooseWeight(rank);
  if (backward != kNoPass && (forward == kNoPass || !policy_->forward_first)) {
    Perform(rank, backward, now);
  } else if (forward != kNoPass) {
    Perform(rank, forward, now);
  } else if (weight != kNoPass &&
             (blocked || next_arrival == kNever ||
              static_cast<double>(next_arrival - now) >=
                  policy_->weight_gap *
                      static_cast<double>(duration_[static_cast<size_t>(weight)]))) {
    Perform(rank, weight, now);
  } else {
    state.wake_at = next_arrival;
  }
}

bool ListScheduler::HasRoom(int rank, PassId pass) const {
  const RankState& state = rank_[static_cast<size_t>(rank)];
  double need = problem_.StashChange(pass, order_.fused);
  if (need <= 0.0) return true;
  need += state.stash;
  if (problem_.MicroBatchOf(pass) != state.oldest) {
    size_t forwards = 0;
    size_t backwards = 0;
    for (const int stage : problem_.stages_of_rank[static_cast<size_t>(rank)]) {
      const StageState& progress = stage_[static_cast<size_t>(stage)];
      forwards += progress.next_forward > state.oldest ? 1 : 0;
      backwards += progress.next_backward > state.oldest ? 1 : 0;
    }
    need += problem_.StashToFinish(rank, state.oldest, forwards, backwards, order_.fused);
  }
  return need <= problem_.limit[static_cast<size_t>(rank)];
}

PassId ListScheduler::Choose(PassKind kind, int rank, int64_t now, int64_t& next_arrival,
                             bool& blocked) const {
  const bool forward = kind == PassKind::kForward;
  // Stages ascend: the deepest F is the last one available, the deepest B the first.
  const bool takes_last = forward && policy_->depth_first;
  const bool takes_first = !forward && policy_->depth_first;
  PassId best = kNoPass;
  for (const int stage : problem_.stages_of_rank[static_cast<size_t>(rank)]) {
    const StageState& state = stage_[static_cast<size_t>(stage)];
    const int i = forward ? state.next_forward : state.next_backward;
    if (i == problem_.micro_batches) continue;
    const int in_flight = state.next_forward - state.next_backward;
    if (forward && in_flight >= policy_->in_flight[static_cast<size_t>(stage)]) continue;
    const PassId pass = problem_.Pass(kind, stage, i);
    const int64_t arrival = arrival_[static_cast<size_t>(pass)];
    if (arrival > now) {
      next_arrival = std::min(next_arrival, arrival);
      continue;
    }
    if (!HasRoom(rank, pass)) {
      blocked = true;
      continue;
    }
    const bool is_earlier = best != kNoPass && i < problem_.MicroBatchOf(best);
    if (best == kNoPass || takes_last || (is_earlier && !takes_first)) best = pass;
  }
  return best;
}

PassId ListScheduler::ChooseWeight(int rank) const {
  PassId best = kNoPass;
  for (const int stage : problem_.stages_of_rank[static_cast<size_t>(rank)]) {
    const StageState& state = stage_[static_cast<size_t>(stage)];
    if (state.next_weight >= state.next_backward) continue;
    if (best == kNoPass || state.next_weight <= problem_.MicroBatchOf(best)) {
      best = problem_.Pass(PassKind::kWeight, stage, state.next_weight);
    }
  }
  return best;
}

void ListScheduler::Perform(int rank, PassId pass, int64_t now) {
  RankState& state = rank_[static_cast<size_t>(rank)];
  const size_t p = static_cast<size_t>(pass);
  const int64_t end = now + duration_[p];
  state.free_at = end;
  state.wake_at = end;
  if (end > now) state.first_start = std::min(state.first_start, now);
  state.stash += problem_.StashChange(pass, order_.fused);
  order_.lists[static_cast<size_t>(rank)].push_back(pass);
  --to_perform_;

  const int stage = problem_.StageOf(pass);
  StageState& progress = stage_[static_cast<size_t>(stage)];
  switch (problem_.KindOf(pass)) {
    case PassKind::kForward: {
      const int i = progress.next_forward++;
      if (stage + 1 == problem_.stages) {
        arrival_[static_cast<size_t>(problem_.Pass(PassKind::kBackward, stage, i))] = end;
      }
      break;
    }
    case PassKind::kBackward:
      ++progress.next_backward;
      state.oldest = problem_.micro_batches;
      for (const int other : problem_.stages_of_rank[static_cast<size_t>(rank)]) {
        state.oldest = std::min(state.oldest, stage_[static_cast<size_t>(other)].next_backward);
      }
      break;
    case PassKind::kWeight:
      ++progress.next_weight;
      break;
  }
  const PassId consumer = problem_.consumer[p];
  if (consumer == kNoPass) return;
  const size_t c = static_cast<size_t>(consumer);
  arrival_[c] = end + problem_.transfer[c];
  RankState& receiver = rank_[static_cast<size_t>(problem_.rank_of[c])];
  receiver.wake_at = std::min(receiver.wake_at, std::max(arrival_[c], receiver.free_at));
}

}  // namespace stagecoach::schedule
