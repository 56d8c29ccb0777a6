#include "schedule/search/best_order.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/inlined_vector.h"
#include "base/check.h"
#include "schedule/search/order_problem.h"

namespace stagecoach::schedule {
namespace {

constexpr size_t kRanks = kMaxTinyRanks;
constexpr size_t kStages = kRanks * kMaxTinyPasses / 3;
constexpr size_t kPasses = kRanks * kMaxTinyPasses;
constexpr int64_t kNoInput = -1;
// Number of nodes that take as long as judging an order.
constexpr int64_t kNodesPerJudgement = 50;
// Number of nodes between questions whether to continue.
constexpr int64_t kNodesPerQuestion = 1000;
// Number of orders with the same passes done that are kept to rule out others.
constexpr size_t kMostKept = 16;

size_t Index(int i) { return static_cast<size_t>(i); }

// A pass that could be performed next.
struct Choice {
  PassId pass = kNoPass;
  bool is_fused = false;
};

// An unfinished order, and the times of what it has done.
struct Node {
  int64_t bound_ns = 0;
  std::array<int64_t, kRanks> clock_ns{};
  std::array<Choice, kRanks> waiting;  // the rank's next pass, whose input does not exist yet
  std::array<int64_t, kPasses> arrival_ns{};   // of a pass's input; kNoInput; index: pass
  std::array<int64_t, 2 * kStages> lane_ns{};  // when the last message has arrived; index: lane
  std::array<int64_t, kRanks> reduced_ns{};    // when the rank's last REDUCE is done
  std::array<int64_t, kStages> stage_reduced_ns{};  // of the stage
  std::array<double, kRanks> stash{};
  // Micro-batches done; index: stage. A BW counts as both.
  std::array<uint8_t, kStages> forwards{}, backwards{}, weights{};
  std::array<std::array<uint8_t, kMaxTinyPasses>, kRanks> lists{};  // passes
  std::array<uint8_t, kRanks> lengths{};
  std::array<bool, kStages * kMaxTinyMicroBatches> fused{};  // like FusedPasses
};

class OrderTree {
 public:
  OrderTree(const AutomaticRequest& request, absl::Span<const PassNeeds> needs);

  int64_t RootBoundNs() {
    Node root = Root();
    return BoundNs(root);
  }

  struct Found {
    std::optional<Schedule> schedule;
    int64_t step_ns = 0;   // as judged
    int64_t least_ns = 0;  // best of the first tree, in its own times
    int64_t open_ns = 0;   // no order that was not visited is faster
  };
  // Searches one of the two trees, within the limits of both. Improves `found`, whose step is to be
  // beaten.
  void Search(bool is_exact, OrderJudge judge, const BestOrderLimits& limits, Found& found);
  int64_t nodes() const { return nodes_; }
  // Returns true if the limits are reached.
  bool IsOver();

 private:
  using Times = absl::InlinedVector<int64_t, 16>;

  Node Root() const;
  void MakeTails();
  int64_t AfterPass(PassId pass) const;

  void Expand(Node& node, OrderJudge judge);
  void Judge(const Node& node, OrderJudge judge);
  // Returns the rank that is free first among those that can choose; -1 if there is none.
  int RankToChoose(const Node& node) const;
  absl::InlinedVector<Choice, 16> ChoicesOf(const Node& node, int rank) const;
  void DropDelayed(const Node& node, int rank, absl::InlinedVector<Choice, 16>& choices) const;
  bool CanDelay(const Node& node, const Choice& choice, const Choice& by) const;
  bool HasRoom(const Node& node, int rank, const Choice& choice) const;
  double StashChange(const Choice& choice) const;

  // Performs the pass, or lets the rank wait for its input; then whatever that triggers.
  void Take(Node& node, int rank, const Choice& choice) const;
  void Perform(Node& node, int rank, const Choice& choice) const;
  // Returns when the rank could continue.
  int64_t EndNs(const Node& node, int rank, const Choice& choice, int64_t start_ns) const;

  // Returns a lower bound of the time of all orders that begin like this one.
  int64_t BoundNs(const Node& node);
  void FindHeads(const Node& node);
  int64_t RankBoundNs(const Node& node, int rank) const;
  // Returns the step of an order that has all passes.
  int64_t StepNs(const Node& node) const;

  bool IsDominated(const Node& node);
  uint64_t KeyOf(const Node& node) const;
  Times TimesOf(const Node& node) const;

  int KindOf(PassId pass) const { return static_cast<int>(problem_.KindOf(pass)); }
  bool IsDone(const Node& node, PassId pass) const {
    const auto stage = Index(problem_.StageOf(pass));
    const int micro_batch = problem_.MicroBatchOf(pass);
    switch (problem_.KindOf(pass)) {
      case PassKind::kForward:
        return node.forwards[stage] > micro_batch;
      case PassKind::kBackward:
        return node.backwards[stage] > micro_batch;
      case PassKind::kWeight:
        return node.weights[stage] > micro_batch;
    }
    return true;
  }
  int64_t DurationNs(const Choice& choice) const {
    return (choice.is_fused ? problem_.fused_duration : problem_.duration)[Index(choice.pass)];
  }
  // Returns a lower bound of the time that the pass takes on its rank; for a W, of BW beyond B.
  int64_t LeastNs(const Node& node, PassId pass) const {
    if (problem_.KindOf(pass) != PassKind::kWeight) return least_ns_[Index(pass)];
    const PassId backward = pass - problem_.stages * problem_.micro_batches;
    return IsDone(node, backward) ? problem_.duration[Index(pass)] : least_ns_[Index(pass)];
  }
  // Returns the lane on which the pass sends, determined by its stage and kind.
  size_t LaneOf(PassId pass) const {
    return 2 * Index(problem_.StageOf(pass)) + Index(KindOf(pass));
  }
  bool IsSent(PassId pass) const {
    const PassId consumer = problem_.consumer[Index(pass)];
    return consumer != kNoPass &&
           problem_.rank_of[Index(consumer)] != problem_.rank_of[Index(pass)];
  }
  int64_t SendNs(PassId pass) const {
    return IsSent(pass) ? problem_.transfer[Index(problem_.consumer[Index(pass)])] : 0;
  }

  const AutomaticRequest& request_;
  std::vector<PassNeeds> needs_;  // index: stage
  const OrderProblem problem_;
  const bool blocks_;     // sends take their rank's time
  const bool has_lanes_;  // lanes take one message at a time
  bool reduces_ = false;
  // True if BW is shorter than B and W, or takes less memory at some time. Index: stage.
  std::vector<bool> gains_by_fusing_;
  // Index: pass.
  std::vector<int64_t> least_ns_;
  std::vector<int64_t> tail_ns_;              // from its end to the end of the step, at least
  std::vector<int64_t> head_ns_;              // for the current node: earliest possible start
  std::vector<PassId> in_turn_;               // all passes, each after those that it needs
  std::vector<std::vector<PassId>> by_tail_;  // index: rank; the longest first

  bool is_exact_ = false;
  int64_t nodes_ = 0;
  int64_t asked_at_ = 0;
  bool is_over_ = false;
  const BestOrderLimits* limits_ = nullptr;
  Found* found_ = nullptr;
  absl::flat_hash_map<uint64_t, std::vector<Times>> known_;  // first tree
};

OrderTree::OrderTree(const AutomaticRequest& request, absl::Span<const PassNeeds> needs)
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
int64_t OrderTree::AfterPass(PassId pass) const {
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

void OrderTree::MakeTails() {
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

Node OrderTree::Root() const {
  Node root;
  for (const PassId pass : in_turn_) {
    root.arrival_ns[Index(pass)] = problem_.producer[Index(pass)] == kNoPass ? 0 : kNoInput;
  }
  return root;
}

void OrderTree::Search(bool is_exact, OrderJudge judge, const BestOrderLimits& limits,
                       Found& found) {
  is_exact_ = is_exact;
  limits_ = &limits;
  found_ = &found;
  known_.clear();
  found.least_ns = found.open_ns = found.step_ns;
  Node root = Root();
  root.bound_ns = BoundNs(root);
  if (root.bound_ns < found.step_ns) Expand(root, judge);
}

bool OrderTree::IsOver() {
  if (nodes_ >= asked_at_ + kNodesPerQuestion && limits_->is_cut_short != nullptr) {
    asked_at_ = nodes_;
    is_over_ = limits_->is_cut_short();
  }
  is_over_ = is_over_ || nodes_ >= limits_->nodes;
  return is_over_;
}

void OrderTree::Expand(Node& node, OrderJudge judge) {
  const auto most_ns = [&] {
    return is_exact_ ? found_->step_ns : std::min(found_->step_ns, found_->least_ns);
  };
  const int rank = RankToChoose(node);
  if (rank < 0) {
    if (std::all_of(node.lengths.begin(), node.lengths.begin() + problem_.ranks,
                    [](uint8_t length) { return length > 0; }) &&
        std::all_of(node.waiting.begin(), node.waiting.end(),
                    [](const Choice& choice) { return choice.pass == kNoPass; })) {
      Judge(node, judge);
    }
    return;  // if not judged, all ranks wait for each other
  }
  if (!is_exact_ && IsDominated(node)) return;
  FindHeads(node);
  absl::InlinedVector<Choice, 16> choices = ChoicesOf(node, rank);
  if (!is_exact_) DropDelayed(node, rank, choices);
  std::vector<Node> children;
  children.reserve(choices.size());
  for (const Choice& choice : choices) {
    ++nodes_;
    Node& child = children.emplace_back(node);
    Take(child, rank, choice);
    child.bound_ns = BoundNs(child);
    if (child.bound_ns >= most_ns()) children.pop_back();
  }
  std::vector<size_t> order;
  for (size_t i = 0; i < children.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return children[a].bound_ns < children[b].bound_ns; });
  for (const size_t i : order) {
    if (children[i].bound_ns >= most_ns()) return;
    if (IsOver()) {
      found_->open_ns = std::min(found_->open_ns, children[i].bound_ns);
      return;
    }
    Expand(children[i], judge);
  }
}

void OrderTree::Judge(const Node& node, OrderJudge judge) {
  const int64_t step_ns = StepNs(node);
  if (step_ns >= found_->step_ns) return;
  if (!is_exact_) {
    if (step_ns >= found_->least_ns) return;
    found_->least_ns = step_ns;
  }
  Order order;
  order.fused.assign(node.fused.begin(),
                     node.fused.begin() + problem_.stages * problem_.micro_batches);
  for (int r = 0; r < problem_.ranks; ++r) {
    const auto begin = node.lists[Index(r)].begin();
    order.lists.emplace_back(begin, begin + node.lengths[Index(r)]);
  }
  Schedule schedule = problem_.ToSchedule(order);
  nodes_ += kNodesPerJudgement;
  const std::optional<int64_t> judged_ns = judge(schedule);
  if (!judged_ns.has_value() || *judged_ns >= found_->step_ns) return;
  found_->step_ns = *judged_ns;
  found_->schedule = std::move(schedule);
}

int OrderTree::RankToChoose(const Node& node) const {
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

absl::InlinedVector<Choice, 16> OrderTree::ChoicesOf(const Node& node, int rank) const {
  absl::InlinedVector<Choice, 16> choices;
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
      if (w == b && (is_exact_ || gains_by_fusing_[Index(s)])) {
        add(PassKind::kBackward, s, b, true);
      }
    }
    if (f < problem_.micro_batches) add(PassKind::kForward, s, f, false);
    if (w < b) add(PassKind::kWeight, s, w, false);
  }
  return choices;
}

double OrderTree::StashChange(const Choice& choice) const {
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

bool OrderTree::HasRoom(const Node& node, int rank, const Choice& choice) const {
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
bool OrderTree::CanDelay(const Node& node, const Choice& choice, const Choice& by) const {
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
void OrderTree::DropDelayed(const Node& node, int rank,
                            absl::InlinedVector<Choice, 16>& choices) const {
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

int64_t OrderTree::EndNs(const Node& node, int rank, const Choice& choice, int64_t start_ns) const {
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

void OrderTree::Perform(Node& node, int rank, const Choice& choice) const {
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

void OrderTree::Take(Node& node, int rank, const Choice& choice) const {
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
void OrderTree::FindHeads(const Node& node) {
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
int64_t OrderTree::RankBoundNs(const Node& node, int rank) const {
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

int64_t OrderTree::BoundNs(const Node& node) {
  FindHeads(node);
  int64_t bound_ns = StepNs(node);
  for (int r = 0; r < problem_.ranks; ++r) bound_ns = std::max(bound_ns, RankBoundNs(node, r));
  return bound_ns;
}

int64_t OrderTree::StepNs(const Node& node) const {
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
uint64_t OrderTree::KeyOf(const Node& node) const {
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
OrderTree::Times OrderTree::TimesOf(const Node& node) const {
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

// Returns true if a known order has done the same, nowhere later; otherwise adds this one.
bool OrderTree::IsDominated(const Node& node) {
  Times times = TimesOf(node);
  std::vector<Times>& others = known_[KeyOf(node)];
  const auto is_within = [](const Times& a, const Times& b) {
    return std::equal(a.begin(), a.end(), b.begin(), [](int64_t x, int64_t y) { return x <= y; });
  };
  for (const Times& other : others) {
    if (is_within(other, times)) return true;
  }
  others.erase(std::remove_if(others.begin(), others.end(),
                              [&](const Times& other) { return is_within(times, other); }),
               others.end());
  if (others.size() < kMostKept) others.push_back(std::move(times));
  return false;
}

}  // namespace

BestOrder FindBestOrder(const AutomaticRequest& request, absl::Span<const PassNeeds> needs,
                        const BestOrderLimits& limits, OrderJudge judge) {
  STAGECOACH_CHECK(IsTiny(request.ranks, request.micro_batches, request.chunks),
                   "all orders of more passes are too many");
  OrderTree tree(request, needs);
  OrderTree::Found found;
  found.step_ns = limits.below_ns;
  tree.Search(/*is_exact=*/false, judge, limits, found);
  int64_t bound_ns = std::min(found.least_ns, found.open_ns);
  if (bound_ns < found.step_ns && !tree.IsOver()) {
    tree.Search(/*is_exact=*/true, judge, limits, found);
    bound_ns = std::max(bound_ns, found.open_ns);
  }
  return {.schedule = std::move(found.schedule),
          .step_ns = found.step_ns,
          .bound_ns = std::min(bound_ns, found.step_ns),
          .nodes = tree.nodes()};
}

int64_t OrderBoundNs(const AutomaticRequest& request) {
  return OrderTree(request, {}).RootBoundNs();
}

}  // namespace stagecoach::schedule
