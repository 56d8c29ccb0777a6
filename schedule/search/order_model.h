#ifndef STAGECOACH_SCHEDULE_SEARCH_ORDER_MODEL_H_
#define STAGECOACH_SCHEDULE_SEARCH_ORDER_MODEL_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "schedule/search/automatic.h"
#include "schedule/search/best_order.h"
#include "schedule/search/order_problem.h"

namespace stagecoach::schedule {

// Unfinished orders of tiny requests: what can follow, when it would be done, and how soon all
// could be. FindBestOrder (best_order.h) searches them.
class OrderModel {
 public:
  static constexpr size_t kRanks = kMaxTinyRanks;
  static constexpr size_t kStages = kRanks * kMaxTinyPasses / 3;
  static constexpr size_t kPasses = kRanks * kMaxTinyPasses;
  static constexpr int64_t kNoInput = -1;

  // A pass that could be performed next.
  struct Choice {
    PassId pass = kNoPass;
    bool is_fused = false;
  };
  using Choices = absl::InlinedVector<Choice, 16>;

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
  using Times = absl::InlinedVector<int64_t, 16>;

  OrderModel(const AutomaticRequest& request, absl::Span<const PassNeeds> needs);

  const OrderProblem& problem() const { return problem_; }

  Node Root() const;
  // Returns true if every rank has all of its passes.
  bool IsComplete(const Node& node) const;
  // Returns the rank that is free first among those that can choose; -1 if there is none.
  int RankToChoose(const Node& node) const;
  // Returns what the rank may do next: everything, or only what is needed to find the best of these
  // times.
  Choices ChoicesOf(const Node& node, int rank, bool is_exact);
  // Performs the pass, or lets the rank wait for its input; then whatever that triggers.
  void Take(Node& node, int rank, const Choice& choice) const;
  // Returns a lower bound of the time of all orders that begin like this one.
  int64_t BoundNs(const Node& node);
  // Returns the step of an order that has all passes.
  int64_t StepNs(const Node& node) const;
  uint64_t KeyOf(const Node& node) const;
  Times TimesOf(const Node& node) const;

 private:
  static size_t Index(int i) { return static_cast<size_t>(i); }

  void MakeTails();
  int64_t AfterPass(PassId pass) const;
  void DropDelayed(const Node& node, int rank, Choices& choices) const;
  bool CanDelay(const Node& node, const Choice& choice, const Choice& by) const;
  bool HasRoom(const Node& node, int rank, const Choice& choice) const;
  double StashChange(const Choice& choice) const;
  void Perform(Node& node, int rank, const Choice& choice) const;
  // Returns when the rank could continue.
  int64_t EndNs(const Node& node, int rank, const Choice& choice, int64_t start_ns) const;
  void FindHeads(const Node& node);
  int64_t RankBoundNs(const Node& node, int rank) const;

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
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SEARCH_ORDER_MODEL_H_
