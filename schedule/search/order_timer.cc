#include "schedule/search/order_timer.h"

#include <algorithm>

namespace stagecoach::schedule {
namespace {

constexpr int64_t kNotYet = -1;
constexpr int64_t kNone = int64_t{-1} << 60;

}  // namespace

OrderTimer::OrderTimer(const OrderProblem& problem)
    : problem_(problem),
      start_(static_cast<size_t>(problem.num_passes())),
      tail_(start_.size()),
      before_(start_.size(), kNoPass),
      after_(start_.size(), kNoPass),
      next_(static_cast<size_t>(problem.ranks)),
      clock_(next_.size()),
      tail_of_list_(next_.size()) {
  performed_.reserve(start_.size());
}

int64_t OrderTimer::ready_ns(PassId pass) const {
  const auto p = static_cast<size_t>(pass);
  const PassId producer = problem_.producer[p];
  return producer == kNoPass ? 0 : end_ns(producer) + problem_.transfer[p];
}

int64_t OrderTimer::tail_by_message_ns(PassId pass) const {
  const PassId consumer = problem_.consumer[static_cast<size_t>(pass)];
  if (consumer == kNoPass) return kNone;
  return problem_.transfer[static_cast<size_t>(consumer)] + duration(consumer) + tail_ns(consumer);
}

void OrderTimer::RunRank(const std::vector<PassId>& list, int rank) {
  const auto r = static_cast<size_t>(rank);
  int64_t clock = clock_[r];
  size_t next = next_[r];
  for (; next < list.size(); ++next) {
    const auto pass = static_cast<size_t>(list[next]);
    int64_t start = clock;
    if (const PassId producer = problem_.producer[pass]; producer != kNoPass) {
      const int64_t sent = start_[static_cast<size_t>(producer)];
      if (sent == kNotYet) break;
      start = std::max(start, sent + duration(producer) + problem_.transfer[pass]);
    }
    start_[pass] = start;
    clock = start + duration_[pass];
    performed_.push_back(list[next]);
    const PassId consumer = problem_.consumer[pass];
    if (consumer == kNoPass) continue;
    // The rank may wait for something else, but looking is cheap.
    const int other = problem_.rank_of[static_cast<size_t>(consumer)];
    if (other != rank) runnable_.push_back(other);
  }
  clock_[r] = clock;
  next_[r] = next;
}

bool OrderTimer::Run(const Order& order) {
  if (fused_ != order.fused) {
    fused_ = order.fused;
    duration_ = problem_.DurationsIf(fused_);
  }
  performed_.clear();
  size_t passes = 0;
  for (size_t r = 0; r < order.lists.size(); ++r) {
    next_[r] = 0;
    clock_[r] = 0;
    runnable_.push_back(static_cast<int>(r));
    PassId last = kNoPass;
    passes += order.lists[r].size();
    for (const PassId pass : order.lists[r]) {
      start_[static_cast<size_t>(pass)] = kNotYet;
      before_[static_cast<size_t>(pass)] = last;
      if (last != kNoPass) after_[static_cast<size_t>(last)] = pass;
      last = pass;
    }
    after_[static_cast<size_t>(last)] = kNoPass;
  }
  while (!runnable_.empty()) {
    const int rank = runnable_.back();
    runnable_.pop_back();
    RunRank(order.lists[static_cast<size_t>(rank)], rank);
  }
  if (performed_.size() < passes) return false;

  const bool by_span = problem_.objective == OrderObjective::kSpan;
  score_ = {kNone, kNone, 0};
  for (size_t r = 0; r < order.lists.size(); ++r) {
    const std::vector<PassId>& list = order.lists[r];
    size_t first = 0;
    while (first + 1 < list.size() && duration(list[first]) == 0) ++first;
    const int64_t end = clock_[r] + problem_.after_list[r];
    const int64_t span = end - start_ns(list[first]);
    const int64_t objective = by_span ? span : end;
    if (objective > score_.objective_ns) longest_rank_ = static_cast<int>(r);
    score_.objective_ns = std::max(score_.objective_ns, objective);
    score_.other_ns = std::max(score_.other_ns, by_span ? end : span);
    score_.sum_of_ends += end;
    // The order cannot choose where a rank starts: the first pass is the first micro-batch's.
    tail_of_list_[r] = problem_.after_list[r] - (by_span ? start_ns(list[first]) : 0);
  }
  return true;
}

void OrderTimer::RunTails() {
  for (size_t i = performed_.size(); i-- > 0;) {
    const PassId pass = performed_[i];
    const PassId next = after(pass);
    const int64_t by_list =
        next == kNoPass
            ? tail_of_list_[static_cast<size_t>(problem_.rank_of[static_cast<size_t>(pass)])]
            : duration(next) + tail_ns(next);
    tail_[static_cast<size_t>(pass)] = std::max(by_list, tail_by_message_ns(pass));
  }
}

}  // namespace stagecoach::schedule
