#include "schedule/search/order_model.h"

#include <algorithm>
#include <limits>

namespace stagecoach::schedule {
OrderModel::OrderModel(const AutomaticRequest& request, absl::Span<const PassNeeds> needs)
    : request_(request),
      needs_(needs.begin(), needs.end()),
      problem_(request),
      blocks_(request.sends == Sends::kBlocking),
      has_lanes_(request.sends == Sends::kRendezvous || request.sends == Sends::kGrouped),
      least_ns_(Index(problem_.num_passes())),
      tail_ns_(least_ns_.size()),
      head_ns_(least_ns_.size()),
      by_tail_(Index(request.ranks)) {
  const int m = problem_.micro_batches;
  needs_.resize(Index(problem_.stages));
  for (const StageTimes& times : request.costs.stages) reduces_ = reduces_ || times.reduce_ns > 0;
  for (int s = 0; s < problem_.stages; ++s) {
    const PassNeeds& own = needs_[Index(s)];
    gains_by_fusing_.push_back(problem_.gains_by_fusing[Index(s)] || own.fused < own.backward);
    for (int i = 0; i < m; ++i) {
      const PassId f = problem_.Pass(PassKind::kForward, s, i);
      const PassId b = problem_.Pass(PassKind::kBackward, s, i);
      const PassId w = problem_.Pass(PassKind::kWeight, s, i);
      const int64_t apart_ns = problem_.duration[Index(b)] + problem_.duration[Index(w)];
      const int64_t fused_ns = problem_.fused_duration[Index(b)];
      const int64_t least_b_ns = std::min(problem_.duration[Index(b)], fused_ns);
      least_ns_[Index(f)] = problem_.duration[Index(f)] + (blocks_ ? SendNs(f) : 0);
      least_ns_[Index(b)] = least_b_ns + (blocks_ ? SendNs(b) : 0);
      least_ns_[Index(w)] = std::min(apart_ns, fused_ns) - least_b_ns;
      in_turn_.push_back(f);
    }
  }
  for (int s = problem_.stages; s-- > 0;) {
    for (int i = 0; i < m; ++i) in_turn_.push_back(problem_.Pass(PassKind::kBackward, s, i));
  }
  for (int s = 0; s < problem_.stages; ++s) {
    for (int i = 0; i < m; ++i) in_turn_.push_back(problem_.Pass(PassKind::kWeight, s, i));
  }
  MakeTails();
  for (const PassId pass : in_turn_) by_tail_[Index(problem_.rank_of[Index(pass)])].push_back(pass);
  for (std::vector<PassId>& passes : by_tail_) {
    std::stable_sort(passes.begin(), passes.end(),
                     [&](PassId a, PassId b) { return tail_ns_[Index(a)] > tail_ns_[Index(b)]; });
  }
}

// Returns the time of what comes after the pass in any order of its rank, and of the updates.
int64_t OrderModel::AfterPass(PassId pass) const {
  const int stage = problem_.StageOf(pass);
  const int i = problem_.MicroBatchOf(pass);
  const int rank = problem_.rank_of[Index(pass)];
  int64_t after_ns = problem_.after_list[Index(rank)];
  const auto add = [&](PassKind kind, int s, int first) {
    for (int j = first; j < problem_.micro_batches; ++j) {
      after_ns += least_ns_[Index(problem_.Pass(kind, s, j))];
    }
  };
  for (const int s : problem_.stages_of_rank[Index(rank)]) {
    switch (problem_.KindOf(pass)) {
      case PassKind::kForward:
        if (s >= stage) add(PassKind::kForward, s, s == stage ? i + 1 : i);
        add(PassKind::kBackward, s, i);
        add(PassKind::kWeight, s, i);
        break;
      case PassKind::kBackward:
        if (s > stage) break;
        add(PassKind::kBackward, s, s == stage ? i + 1 : i);
        add(PassKind::kWeight, s, i);
        break;
      case PassKind::kWeight:
        if (s == stage) add(PassKind::kWeight, s, i + 1);
        break;
    }
  }
  return after_ns;
}

void OrderModel::MakeTails() {
  for (size_t k = in_turn_.size(); k-- > 0;) {
    const PassId pass = in_turn_[k];
    const int stage = problem_.StageOf(pass);
    const int i = problem_.MicroBatchOf(pass);
    int64_t& tail_ns = tail_ns_[Index(pass)];
    tail_ns = AfterPass(pass);
    const auto precede = [&](PassId next, int64_t transfer_ns) {
      tail_ns = std::max(tail_ns, transfer_ns + least_ns_[Index(next)] + tail_ns_[Index(next)]);
    };
    const PassKind kind = problem_.KindOf(pass);
    if (i + 1 < problem_.micro_batches) precede(problem_.Pass(kind, stage, i + 1), 0);
    if (kind == PassKind::kForward) precede(problem_.Pass(PassKind::kBackward, stage, i), 0);
    if (kind == PassKind::kBackward) precede(problem_.Pass(PassKind::kWeight, stage, i), 0);
    if (const PassId consumer = problem_.consumer[Index(pass)]; consumer != kNoPass) {
      precede(consumer, blocks_ ? 0 : problem_.transfer[Index(consumer)]);
    }
    if (kind == PassKind::kWeight && i + 1 == problem_.micro_batches &&
        !request_.costs.updates_in_backward) {
      const StageTimes& times = request_.costs.of(StageId(stage));
      tail_ns = std::max(tail_ns, times.reduce_ns + times.step_ns);
    }
  }
}

OrderModel::Node OrderModel::Root() const {
  Node root;
  for (const PassId pass : in_turn_) {
    root.arrival_ns[Index(pass)] = problem_.producer[Index(pass)] == kNoPass ? 0 : kNoInput;
  }
  return root;
}

bool OrderModel::IsComplete(const Node& node) const {
  return std::all_of(node.lengths.begin(), node.lengths.begin() + problem_.ranks,
                     [](uint8_t length) { return length > 0; }) &&
         std::all_of(node.waiting.begin(), node.waiting.end(),
                     [](const Choice& choice) { return choice.pass == kNoPass; });
}

int OrderModel::RankToChoose(const Node& node) const {
  int chosen = -1;
  for (int r = 0; r < problem_.ranks; ++r) {
    if (node.waiting[Index(r)].pass != kNoPass) continue;
    const std::vector<int>& stages = problem_.stages_of_rank[Index(r)];
    const bool is_done = std::all_of(stages.begin(), stages.end(), [&](int s) {
      return node.weights[Index(s)] == problem_.micro_batches;
    });
    if (is_done) continue;
    if (chosen < 0 || node.clock_ns[Index(r)] < node.clock_ns[Index(chosen)]) chosen = r;
  }
  return chosen;
}

OrderModel::Choices OrderModel::ChoicesOf(const Node& node, int rank, bool is_exact) {
  Choices choices;
  const auto add = [&](PassKind kind, int stage, int micro_batch, bool is_fused) {
    const Choice choice = {problem_.Pass(kind, stage, micro_batch), is_fused};
    const PassId producer = problem_.producer[Index(choice.pass)];
    const bool waits_for_itself = producer != kNoPass &&
                                  problem_.rank_of[Index(producer)] == rank &&
                                  node.arrival_ns[Index(choice.pass)] == kNoInput;
    if (!waits_for_itself && HasRoom(node, rank, choice)) choices.push_back(choice);
  };
  for (const int s : problem_.stages_of_rank[Index(rank)]) {
    const int f = node.forwards[Index(s)], b = node.backwards[Index(s)], w = node.weights[Index(s)];
    if (b < f) {
      add(PassKind::kBackward, s, b, false);
      if (w == b && (is_exact || gains_by_fusing_[Index(s)])) {
        add(PassKind::kBackward, s, b, true);
      }
    }
    if (f < problem_.micro_batches) add(PassKind::kForward, s, f, false);
    if (w < b) add(PassKind::kWeight, s, w, false);
  }
  if (is_exact) return choices;
  FindHeads(node);
  DropDelayed(node, rank, choices);
  return choices;
}

double OrderModel::StashChange(const Choice& choice) const {
  const StageStash& kept = problem_.stash[Index(problem_.StageOf(choice.pass))];
  switch (problem_.KindOf(choice.pass)) {
    case PassKind::kForward:
      return kept.forward;
    case PassKind::kBackward:
      return choice.is_fused ? -kept.forward : kept.weight - kept.forward;
    case PassKind::kWeight:
      return -kept.weight;
  }
  return 0.0;
}

bool OrderModel::HasRoom(const Node& node, int rank, const Choice& choice) const {
  const double limit = problem_.limit[Index(rank)];
  double kept = node.stash[Index(rank)];
  for (const int s : problem_.stages_of_rank[Index(rank)]) {
    if (node.forwards[Index(s)] > 0) kept += needs_[Index(s)].sent_forward;
    if (node.backwards[Index(s)] > 0) kept += needs_[Index(s)].sent_backward;
  }
  const PassNeeds& needs = needs_[Index(problem_.StageOf(choice.pass))];
  const double change = StashChange(choice);
  switch (problem_.KindOf(choice.pass)) {
    case PassKind::kForward:
      return kept + change + needs.forward <= limit;
    case PassKind::kBackward:
      return kept + std::max(change, choice.is_fused ? needs.fused : needs.backward) <= limit;
    case PassKind::kWeight:
      return true;
  }
  return true;
}

// Returns true if doing `by` before the choice, where that costs the choice no time, makes no order
// worse.
bool OrderModel::CanDelay(const Node& node, const Choice& choice, const Choice& by) const {
  if (choice.pass == by.pass) return false;
  const int stage = problem_.StageOf(by.pass);
  const bool gains = gains_by_fusing_[Index(stage)];
  if (problem_.KindOf(by.pass) == PassKind::kBackward && gains && !by.is_fused) return false;
  double change = StashChange(by);
  if (problem_.KindOf(by.pass) == PassKind::kBackward && node.backwards[Index(stage)] == 0) {
    change += needs_[Index(stage)].sent_backward;
  }
  if (change <= 0.0) return true;
  return problem_.limit[Index(problem_.rank_of[Index(by.pass)])] ==
         std::numeric_limits<double>::infinity();
}

// Removes choices for which a rank would wait although it could do something else meanwhile.
void OrderModel::DropDelayed(const Node& node, int rank, Choices& choices) const {
  // A sum that begins earlier may delay another one.
  if (reduces_ && problem_.stages_of_rank[Index(rank)].size() > 1) return;
  const absl::InlinedVector<Choice, 16> all = choices;
  const auto is_delayed = [&](const Choice& choice) {
    const int64_t start_ns = head_ns_[Index(choice.pass)];
    return std::any_of(all.begin(), all.end(), [&](const Choice& other) {
      const int64_t arrival_ns = node.arrival_ns[Index(other.pass)];
      if (arrival_ns == kNoInput || !CanDelay(node, choice, other)) return false;
      const int64_t other_ns = std::max(node.clock_ns[Index(rank)], arrival_ns);
      const int64_t end_ns = EndNs(node, rank, other, other_ns);
      return end_ns <= start_ns && other_ns < start_ns;
    });
  };
  choices.erase(std::remove_if(choices.begin(), choices.end(), is_delayed), choices.end());
}

int64_t OrderModel::EndNs(const Node& node, int rank, const Choice& choice,
                          int64_t start_ns) const {
  int64_t end_ns = start_ns + DurationNs(choice);
  if (IsSent(choice.pass)) {
    if (blocks_) end_ns += SendNs(choice.pass);
    // The rank continues once the previous message has arrived.
    if (has_lanes_) end_ns = std::max(end_ns, node.lane_ns[LaneOf(choice.pass)]);
  }
  const bool completes = problem_.MicroBatchOf(choice.pass) + 1 == problem_.micro_batches &&
                         (choice.is_fused || problem_.KindOf(choice.pass) == PassKind::kWeight);
  if (reduces_ && completes && blocks_) {
    end_ns = std::max(end_ns, node.reduced_ns[Index(rank)]) +
             request_.costs.of(StageId(problem_.StageOf(choice.pass))).reduce_ns;
  }
  return end_ns;
}

void OrderModel::Perform(Node& node, int rank, const Choice& choice) const {
  const auto r = Index(rank);
  const int stage = problem_.StageOf(choice.pass);
  const int micro_batch = problem_.MicroBatchOf(choice.pass);
  const int64_t start_ns = std::max(node.clock_ns[r], node.arrival_ns[Index(choice.pass)]);
  const int64_t end_ns = EndNs(node, rank, choice, start_ns);
  if (const PassId consumer = problem_.consumer[Index(choice.pass)]; consumer != kNoPass) {
    int64_t arrival_ns = start_ns + DurationNs(choice);
    if (IsSent(choice.pass)) {
      if (has_lanes_) arrival_ns = std::max(arrival_ns, node.lane_ns[LaneOf(choice.pass)]);
      arrival_ns += SendNs(choice.pass);
      node.lane_ns[LaneOf(choice.pass)] = arrival_ns;
    }
    node.arrival_ns[Index(consumer)] = arrival_ns;
  }
  node.clock_ns[r] = end_ns;
  node.stash[r] += StashChange(choice);
  node.lists[r][node.lengths[r]++] = static_cast<uint8_t>(choice.pass);
  switch (problem_.KindOf(choice.pass)) {
    case PassKind::kForward:
      ++node.forwards[Index(stage)];
      break;
    case PassKind::kBackward:
      ++node.backwards[Index(stage)];
      if (choice.is_fused) ++node.weights[Index(stage)];
      node.fused[Index(stage * problem_.micro_batches + micro_batch)] = choice.is_fused;
      break;
    case PassKind::kWeight:
      ++node.weights[Index(stage)];
      break;
  }
  if (!reduces_ || node.weights[Index(stage)] < problem_.micro_batches) return;
  const int64_t reduce_ns = request_.costs.of(StageId(stage)).reduce_ns;
  int64_t& reduced_ns = node.reduced_ns[r];
  reduced_ns = blocks_ ? end_ns : std::max(end_ns, reduced_ns) + reduce_ns;
  node.stage_reduced_ns[Index(stage)] = reduced_ns;
}

void OrderModel::Take(Node& node, int rank, const Choice& choice) const {
  node.waiting[Index(rank)] = choice;
  bool has_moved = true;
  while (has_moved) {
    has_moved = false;
    for (int r = 0; r < problem_.ranks; ++r) {
      const Choice next = node.waiting[Index(r)];
      if (next.pass == kNoPass || node.arrival_ns[Index(next.pass)] == kNoInput) continue;
      node.waiting[Index(r)] = {};
      Perform(node, r, next);
      has_moved = true;
    }
  }
}

// Passes twice, since what waits delays the rest of its rank.
void OrderModel::FindHeads(const Node& node) {
  std::array<int64_t, kRanks> free_ns = node.clock_ns;
  bool waits = true;
  for (int round = 0; round < 2 && waits; ++round) {
    for (const PassId pass : in_turn_) {
      if (IsDone(node, pass)) continue;
      const int stage = problem_.StageOf(pass);
      const int i = problem_.MicroBatchOf(pass);
      const int rank = problem_.rank_of[Index(pass)];
      int64_t head_ns = std::max(node.waiting[Index(rank)].pass == pass ? node.clock_ns[Index(rank)]
                                                                        : free_ns[Index(rank)],
                                 node.arrival_ns[Index(pass)]);
      const auto follow = [&](PassId before, int64_t transfer_ns) {
        if (IsDone(node, before)) return;
        head_ns = std::max(head_ns, head_ns_[Index(before)] + LeastNs(node, before) + transfer_ns);
      };
      const PassKind kind = problem_.KindOf(pass);
      if (i > 0) follow(problem_.Pass(kind, stage, i - 1), 0);
      if (kind == PassKind::kBackward) follow(problem_.Pass(PassKind::kForward, stage, i), 0);
      if (kind == PassKind::kWeight) follow(problem_.Pass(PassKind::kBackward, stage, i), 0);
      if (const PassId producer = problem_.producer[Index(pass)]; producer != kNoPass) {
        follow(producer, blocks_ ? 0 : problem_.transfer[Index(pass)]);
      }
      head_ns_[Index(pass)] = head_ns;
    }
    waits = false;
    for (int r = 0; r < problem_.ranks; ++r) {
      const PassId next = node.waiting[Index(r)].pass;
      if (next == kNoPass) continue;
      waits = true;
      free_ns[Index(r)] = head_ns_[Index(next)] + LeastNs(node, next);
    }
  }
}

// Bounds a rank: of any set of its passes, the last one to be done begins no earlier than the first
// can, plus the durations of the others.
int64_t OrderModel::RankBoundNs(const Node& node, int rank) const {
  struct Left {
    int64_t head_ns, duration_ns, tail_ns;
  };
  absl::InlinedVector<Left, kMaxTinyPasses> left;
  for (const PassId pass : by_tail_[Index(rank)]) {
    if (IsDone(node, pass)) continue;
    left.push_back({head_ns_[Index(pass)], LeastNs(node, pass), tail_ns_[Index(pass)]});
  }
  int64_t bound_ns = 0;
  for (const Left& first : left) {
    int64_t sum_ns = first.head_ns;
    for (const Left& last : left) {
      if (last.head_ns < first.head_ns) continue;
      sum_ns += last.duration_ns;
      bound_ns = std::max(bound_ns, sum_ns + last.tail_ns);
    }
  }
  return bound_ns;
}

int64_t OrderModel::BoundNs(const Node& node) {
  FindHeads(node);
  int64_t bound_ns = StepNs(node);
  for (int r = 0; r < problem_.ranks; ++r) bound_ns = std::max(bound_ns, RankBoundNs(node, r));
  return bound_ns;
}

int64_t OrderModel::StepNs(const Node& node) const {
  int64_t step_ns = 0;
  for (int r = 0; r < problem_.ranks; ++r) {
    int64_t clock_ns = node.clock_ns[Index(r)];
    for (const int s : problem_.stages_of_rank[Index(r)]) {
      clock_ns = std::max(clock_ns, node.stage_reduced_ns[Index(s)]);
      if (!request_.costs.updates_in_backward) clock_ns += request_.costs.of(StageId(s)).step_ns;
    }
    step_ns = std::max(step_ns, clock_ns);
  }
  // A list ends when its messages have been taken.
  if (has_lanes_) {
    step_ns = std::max(step_ns, *std::max_element(node.lane_ns.begin(), node.lane_ns.end()));
  }
  return step_ns;
}

// Encodes how far each stage is, and what the ranks wait for.
uint64_t OrderModel::KeyOf(const Node& node) const {
  uint64_t key = 0;
  const auto base = static_cast<uint64_t>(problem_.micro_batches + 1);
  for (int s = 0; s < problem_.stages; ++s) {
    for (const uint8_t count :
         {node.forwards[Index(s)], node.backwards[Index(s)], node.weights[Index(s)]}) {
      key = key * base + count;
    }
  }
  for (int r = 0; r < problem_.ranks; ++r) {
    const Choice& next = node.waiting[Index(r)];
    uint64_t place = 0;  // of a pass whose micro-batch the counts determine
    if (next.pass != kNoPass) {
      const std::vector<int>& stages = problem_.stages_of_rank[Index(r)];
      const auto at = std::find(stages.begin(), stages.end(), problem_.StageOf(next.pass));
      place = 1 + 3 * static_cast<uint64_t>(at - stages.begin()) +
              (next.is_fused ? 2 : static_cast<uint64_t>(KindOf(next.pass)));
    }
    key = key * (kMaxTinyPasses + 1) + place;
  }
  return key;
}

// Returns everything that the rest of the order depends on; less is better.
OrderModel::Times OrderModel::TimesOf(const Node& node) const {
  Times times(node.clock_ns.begin(), node.clock_ns.begin() + problem_.ranks);
  for (const PassId pass : in_turn_) {
    const PassId producer = problem_.producer[Index(pass)];
    if (producer == kNoPass || IsDone(node, pass) || !IsDone(node, producer)) continue;
    times.push_back(std::max(node.arrival_ns[Index(pass)],
                             node.clock_ns[Index(problem_.rank_of[Index(pass)])]));
  }
  if (has_lanes_ && !request_.costs.links.empty()) {
    for (int s = 0; s < problem_.stages; ++s) {
      const int64_t clock_ns = node.clock_ns[Index(problem_.rank_of_stage[Index(s)])];
      for (const int kind : {0, 1}) {
        times.push_back(std::max(node.lane_ns[2 * Index(s) + Index(kind)], clock_ns));
      }
    }
  }
  if (reduces_) {
    times.insert(times.end(), node.reduced_ns.begin(), node.reduced_ns.begin() + problem_.ranks);
    times.insert(times.end(), node.stage_reduced_ns.begin(),
                 node.stage_reduced_ns.begin() + problem_.stages);
  }
  return times;
}

}  // namespace stagecoach::schedule
