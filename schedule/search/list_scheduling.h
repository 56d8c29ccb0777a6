#ifndef STAGECOACH_SCHEDULE_SEARCH_LIST_SCHEDULING_H_
#define STAGECOACH_SCHEDULE_SEARCH_LIST_SCHEDULING_H_

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

#include "schedule/search/order_problem.h"

namespace stagecoach::schedule {

// How a free rank chooses its next pass.
struct ListPolicy {
  // Index: stage. The most micro-batches between its F and its B.
  std::vector<int32_t> in_flight;
  // If both an F and a B could start, take the F (which delays the first B until the warm-up is as
  // long as in_flight allows).
  bool forward_first = false;
  // If several F (B) could start, take that of the later (earlier) stage; otherwise that of the
  // earliest micro-batch.
  bool depth_first = true;
  // A W starts only if nothing else is known to start within this share of its duration.
  double weight_gap = 1.0;
  // Number of first micro-batches that have a BW, on the stages that gain by it.
  int32_t fused = 0;
};

// Event-driven list scheduling: ranks choose in the order of time, among the passes whose inputs
// have arrived, within the stash limits. Keeps room for what the oldest micro-batch still needs on
// its rank, so that there is a result unless a limit is too small for one micro-batch. A W fills
// gaps, or runs when its stash is in the way of an F.
class ListScheduler {
 public:
  explicit ListScheduler(const OrderProblem& problem);

  // Returns nothing if the ranks get stuck.
  std::optional<Order> Run(const ListPolicy& policy);
  // Returns the score of the latest Run's order.
  const Score& score() const { return score_; }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  // Micro-batches; a BW counts as a W too.
  struct StageState {
    int next_forward;
    int next_backward;
    int next_weight;
  };
  struct RankState {
    int64_t free_at;
    int64_t wake_at;      // when it chooses again; kNever if it waits for others
    int64_t first_start;  // of a pass that takes time
    double stash;
    int oldest;  // micro-batch with a backward pass to do
  };

  void Reset(const ListPolicy& policy);
  void Decide(int rank, int64_t now);
  // Returns the F or B that the policy prefers. Also lowers `next_arrival` to the time from which
  // another one could start, and sets `blocked` if only the stash limit holds one back.
  PassId Choose(PassKind kind, int rank, int64_t now, int64_t& next_arrival, bool& blocked) const;
  PassId ChooseWeight(int rank) const;
  bool HasRoom(int rank, PassId pass) const;
  void Perform(int rank, PassId pass, int64_t now);
  void Finish();

  const OrderProblem& problem_;
  const ListPolicy* policy_ = nullptr;
  // Index: pass.
  std::vector<int64_t> duration_;
  std::vector<int64_t> arrival_;  // of a pass's inputs; kNever if unknown
  std::vector<StageState> stage_;
  std::vector<RankState> rank_;
  Order order_;
  size_t to_perform_ = 0;
  Score score_;
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SEARCH_LIST_SCHEDULING_H_
