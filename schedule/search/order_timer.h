#ifndef STAGECOACH_SCHEDULE_SEARCH_ORDER_TIMER_H_
#define STAGECOACH_SCHEDULE_SEARCH_ORDER_TIMER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/search/order_problem.h"

namespace stagecoach::schedule {

// Times an order as SimulateDurations would under buffered sends, without allocating, and says
// which passes its score depends on.
class OrderTimer {
 public:
  explicit OrderTimer(const OrderProblem& problem);

  // Returns false if the order never completes; nothing else may then be asked.
  bool Run(const Order& order);

  // Results of the latest Run.
  const Score& score() const { return score_; }
  int64_t start_ns(PassId pass) const { return start_[static_cast<size_t>(pass)]; }
  int64_t end_ns(PassId pass) const { return start_ns(pass) + duration(pass); }
  int64_t duration(PassId pass) const { return duration_[static_cast<size_t>(pass)]; }
  // Returns when the pass's message arrives; 0 if it waits for none.
  int64_t ready_ns(PassId pass) const;
  // Return the neighbors in the list of its rank; kNoPass at the ends.
  PassId before(PassId pass) const { return before_[static_cast<size_t>(pass)]; }
  PassId after(PassId pass) const { return after_[static_cast<size_t>(pass)]; }

  // Finds the tail of every pass: the objective is the largest end + tail of all passes. For kStep
  // the tail is the longest way from the pass's end, along what waits for it, to the end of a list;
  // for kSpan, that minus the start of that list.
  void RunTails();
  int64_t tail_ns(PassId pass) const { return tail_[static_cast<size_t>(pass)]; }
  // Returns the tail that a pass has through its message alone; far below 0 if it sends none. After
  // RunTails.
  int64_t tail_by_message_ns(PassId pass) const;
  // Returns the tail of the last pass of a list.
  int64_t tail_of_list_ns(int rank) const { return tail_of_list_[static_cast<size_t>(rank)]; }

  // Returns the rank that decides the objective.
  int longest_rank() const { return longest_rank_; }

 private:
  void RunRank(const std::vector<PassId>& list, int rank);

  const OrderProblem& problem_;
  FusedPasses fused_;  // those of the latest order
  Score score_;
  int longest_rank_ = 0;
  // Index: pass.
  std::vector<int64_t> duration_;
  std::vector<int64_t> start_;  // kNotYet before it is performed
  std::vector<int64_t> tail_;
  std::vector<PassId> before_;
  std::vector<PassId> after_;
  std::vector<PassId> performed_;  // in an order that respects all waits
  // Index: rank.
  std::vector<size_t> next_;
  std::vector<int64_t> clock_;
  std::vector<int64_t> tail_of_list_;
  std::vector<int> runnable_;
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SEARCH_ORDER_TIMER_H_
