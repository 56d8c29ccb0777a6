#ifndef STAGECOACH_SCHEDULE_SEARCH_MOVABLE_ORDER_H_
#define STAGECOACH_SCHEDULE_SEARCH_MOVABLE_ORDER_H_

#include <cstddef>
#include <vector>

#include "schedule/search/order_problem.h"

namespace stagecoach::schedule {

// A change of one rank's list; places count from 0.
struct Move {
  enum class Kind {
    kShift,  // takes the pass at `from` out and puts it in at `to`
    kFuse,   // makes the B at `from` a BW and takes its W, at `to`, out
    kSplit,  // makes the BW at `from` a B and puts its W in at `to`
  };
  Kind kind = Kind::kShift;
  int rank = 0;
  int from = 0;
  int to = 0;
};

// An order, and what it takes to tell quickly which moves it permits.
class MovableOrder {
 public:
  MovableOrder(const OrderProblem& problem, const Order& order);

  const Order& order() const { return order_; }
  const std::vector<PassId>& list_of(int rank) const {
    return order_.lists[static_cast<size_t>(rank)];
  }
  // Returns the place in its rank's list. Pre-condition: the pass is in a list.
  int place(PassId pass) const { return place_[static_cast<size_t>(pass)]; }

  // Returns true if the move keeps the order of micro-batches, the order of F, B and W, and the
  // stash limit. (OrderTimer finds what it does to the waits between ranks.) `from` and `to` fit
  // the kind.
  bool Permits(const Move& move) const;
  void Apply(const Move& move);
  static Move Reverse(const Move& move);

 private:
  bool MustPrecede(PassId a, PassId b) const;
  bool PermitsShift(const Move& move) const;
  bool PermitsFuse(const Move& move) const;
  bool PermitsSplit(const Move& move) const;
  void Count(int rank);

  const OrderProblem* problem_;
  Order order_;
  std::vector<int> place_;                  // index: pass; in its rank's list
  std::vector<std::vector<double>> stash_;  // index: rank, place; after that pass
};

}  // namespace stagecoach::schedule

#endif  // STAGECOACH_SCHEDULE_SEARCH_MOVABLE_ORDER_H_
