#include "partition/bounds/step_bounds.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <limits>
#include <numeric>

#include "absl/functional/function_ref.h"

namespace stagecoach::partition {
namespace {

constexpr double kUnboundedNs = std::numeric_limits<double>::infinity();
constexpr double kPrecision = 4e-3;
constexpr double kSlack = 1e-9;      // of sums, which are not exact
constexpr double kFirstStep = 0.05;  // above what is known
constexpr int kMostRepeats = 50;
constexpr double kMostTimes = 64;  // what is known; beyond, nothing is looked for

// The largest step, about, that does not pass: none below passes either.
double LargestThatFails(double at_least_ns, double enough_ns, absl::FunctionRef<bool()> is_over,
                        absl::FunctionRef<bool(double)> passes) {
  if (at_least_ns <= 0 || at_least_ns >= enough_ns || is_over()) return at_least_ns;
  double low_ns = at_least_ns, high_ns = enough_ns;
  if (enough_ns < kUnboundedNs && !passes(enough_ns)) return enough_ns;
  if (passes(at_least_ns)) return at_least_ns;
  for (double step = kFirstStep; step < kMostTimes && !is_over(); step *= 2) {
    const double next_ns = std::min(high_ns, at_least_ns * (1 + step));
    if (next_ns == high_ns || passes(next_ns)) {
      high_ns = next_ns;
      break;
    }
    low_ns = next_ns;
  }
  while (high_ns < kUnboundedNs && high_ns - low_ns > kPrecision * low_ns && !is_over()) {
    const double middle_ns = low_ns + (high_ns - low_ns) / 2;
    (passes(middle_ns) ? high_ns : low_ns) = middle_ns;
  }
  return std::max(at_least_ns, (1 - kSlack) * low_ns);
}

// Returns a link as fast as the faster of the two in every respect.
schedule::Link Faster(const schedule::Link& a, const schedule::Link& b) {
  const bool is_unlimited = a.bytes_per_second == 0 || b.bytes_per_second == 0;
  return {.latency_ns = std::min(a.latency_ns, b.latency_ns),
          .bytes_per_second = is_unlimited ? 0 : std::max(a.bytes_per_second, b.bytes_per_second)};
}

// Asks which boundaries can be reached stage by stage.
class Divisions {
 public:
  explicit Divisions(const StepBoundProblem& problem)
      : problem_(problem),
        boundaries_(problem.boundaries),
        turn_(problem.is_fused ? kFusedTurnNs : kTurnNs),
        backward_(problem.is_fused ? kFusedBackwardNs : kBackwardNs),
        count_(problem.micro_batches),
        all_(boundaries_.back().least),
        ranks_(problem.speeds.size()),
        all_speeds_(std::accumulate(problem.speeds.begin(), problem.speeds.end(), 0.0)) {
    ListStages();
    ListMessages();
    LookBehind();
  }

  // Whether a micro-batch can go there and back again within a step, whatever the boundaries: this
  // takes no time to tell.
  bool LeaveTimeForATurn(double step_ns) {
    step_ns_ = step_ns;
    least_turn_ns_ = LeastTurnNs();
    return least_turn_ns_ <= step_ns;
  }

  // Whether some boundaries meet all conditions for a step.
  bool Pass(double step_ns) {
    if (!LeaveTimeForATurn(step_ns)) return false;
    reached_.assign(boundaries_.size(), {});
    reached_.front() = {0, 0, 0, 0};
    for (size_t stage = 0; stage < ranks_; ++stage) {
      next_.assign(boundaries_.size(), {});
      ListEnds(stages_[stage]);
      bool is_any = false;
      for (size_t begin = 0; begin < boundaries_.size(); ++begin) {
        if (reached_[begin].fill_ns < kUnboundedNs && Extend(stage, begin, next_)) is_any = true;
      }
      if (!is_any) return false;
      reached_.swap(next_);
    }
    // Any number of stages follow.
    if (ranks_ < stages_.size()) ListEnds(stages_.back());
    for (size_t begin = 0; ranks_ < stages_.size() && begin + 1 < boundaries_.size(); ++begin) {
      if (reached_[begin].fill_ns < kUnboundedNs) Extend(ranks_, begin, reached_);
    }
    const Reached end = AtLeast(reached_.back(), boundaries_.size() - 1, RatesOf(ranks_ - 1));
    return end.lost_ns + all_[kWorkNs] <= step_ns * all_speeds_ &&
           end.lost_in_turns_ns + count_ * all_[turn_] <= step_ns * all_speeds_;
  }

 private:
  struct Stage {
    double speed = 1;  // of the fastest rank on which it may be
    double most_in_flight = 1;
    double memory_bytes = kUnboundedNs;
    size_t messages = 0;       // to the next stage; index of forward_ns_ and backward_ns_
    double waiting_speed = 0;  // of the rank that waits until this stage is reached
    double speeds_behind = 0;  // of that and those that wait for later stages
    double sending_speed = 0;  // of the slower rank of the two that the messages are between
    // Behind the stage:
    double fastest = 1;      // of the ranks
    double speeds = 0;       // of all stages
    double messages_ns = 0;  // of one micro-batch, whatever the boundaries
  };
  // The least of each, in whatever way a boundary is reached.
  struct Reached {
    double fill_ns = kUnboundedNs;  // until the first micro-batch is there
    double turn_ns = kUnboundedNs;  // there and back again
    // What ranks wait and send beside the work, or beside all passes but W; weighted by speeds.
    double lost_ns = kUnboundedNs;
    double lost_in_turns_ns = kUnboundedNs;
  };
  // By what each of these grows with F or with the turn of a layer of a stage.
  struct Rates {
    double of_time = 1;  // fill and turn
    double of_lost = 0;  // the others
  };

  bool is_in_order() const { return problem_.chunks == 1; }

  void ListStages() {
    std::vector<double> speeds = problem_.speeds;
    // Wherever ranks are, the j-th to be reached waits for j stages: least is lost if the slow ones
    // wait.
    if (!is_in_order()) std::sort(speeds.begin(), speeds.end(), std::greater<>());
    const std::vector<double>& bytes = problem_.memory_bytes;
    const double most_bytes = *std::max_element(bytes.begin(), bytes.end());
    stages_.resize(ranks_ + (is_in_order() ? 0 : 1));
    for (size_t i = 0; i < stages_.size(); ++i) {
      Stage& stage = stages_[i];
      stage.speed = is_in_order() ? speeds[i] : speeds.front();
      stage.memory_bytes = is_in_order() ? bytes[i] : most_bytes;
      stage.most_in_flight = count_;
      stage.waiting_speed = i < ranks_ ? speeds[i] : 0;
      stage.sending_speed = *std::min_element(speeds.begin(), speeds.end());
      if (problem_.in_flight.empty()) continue;
      const auto first = problem_.in_flight.begin() + static_cast<int64_t>(i);
      stage.most_in_flight =
          i < ranks_ ? *first : *std::max_element(first, problem_.in_flight.end());
    }
    if (!is_in_order()) {
      for (Stage& stage : stages_) stage.speeds = kUnboundedNs;
    }
    for (size_t i = stages_.size() - 1; i-- > 0;) {
      Stage& stage = stages_[i];
      const Stage& next = stages_[i + 1];
      stage.fastest = i + 2 == stages_.size() ? next.speed : std::max(next.fastest, next.speed);
      if (is_in_order()) stage.speeds = next.speeds + next.speed;
      stage.speeds_behind = next.speeds_behind + next.waiting_speed;
    }
    if (!is_in_order()) stages_.back().fastest = speeds.front();
  }

  // To the next stage, if that is on another rank wherever the ranks are: behind the first stages
  // of all ranks it may be on the same one.
  void ListMessages() {
    forward_ns_.emplace_back(boundaries_.size());
    backward_ns_.emplace_back(boundaries_.size());
    if (ranks_ == 1) return;
    const std::vector<schedule::Link>& there = problem_.forward_links;
    const std::vector<schedule::Link>& back = problem_.backward_links;
    const auto fastest = [](const std::vector<schedule::Link>& links) {
      return std::accumulate(links.begin() + 1, links.end(), links.front(), Faster);
    };
    const schedule::Link any = Faster(fastest(there), fastest(back));
    for (size_t i = 0; i < stages_.size(); ++i) {
      if (i + 1 == ranks_) continue;
      const bool is_same =
          is_in_order() ? i > 0 && there[i] == there[i - 1] && back[i] == back[i - 1] : i > 0;
      if (!is_same) {
        AddMessages(forward_ns_, is_in_order() ? there[i] : any, &Boundary::forward_bytes);
        AddMessages(backward_ns_, is_in_order() ? back[i] : any, &Boundary::backward_bytes);
      }
      stages_[i].messages = forward_ns_.size() - 1;
    }
  }

  // What one message of a micro-batch takes over a link, at each boundary.
  void AddMessages(std::vector<std::vector<double>>& messages_ns, const schedule::Link& link,
                   int64_t Boundary::*bytes) const {
    std::vector<double>& ns = messages_ns.emplace_back(boundaries_.size());
    for (size_t i = 1; i + 1 < boundaries_.size(); ++i) {
      ns[i] = static_cast<double>(link.TransferNs(boundaries_[i].*bytes));
    }
  }

  // What a micro-batch takes there and back again, at least, within the step: with one stage per
  // rank, all F but one of a rank, or all B but one, come in addition to that. So fast ranks take
  // only a part of the layers, and slow ones must take the rest. Above the step: none is within it.
  double LeastTurnNs() const {
    const double least_ns = all_[turn_] / fastest_ + messages_ns_;
    if (!is_in_order() || count_ < 2) return least_ns;
    double turn_ns = least_ns;
    for (int i = 0; i < kMostRepeats; ++i) {
      const double most_ns = (step_ns_ - turn_ns) / (count_ - 1);
      if (most_ns < 0) return kUnboundedNs;
      const double next_ns = messages_ns_ + LeastSpreadNs(all_[kForwardNs], most_ns) +
                             LeastSpreadNs(all_[backward_], most_ns);
      if (next_ns <= turn_ns * (1 + kSlack)) break;
      turn_ns = next_ns;
    }
    return std::max(least_ns, (1 - kSlack) * turn_ns);
  }

  // What ranks take in total, at least, for so much work, if none may take longer than that: the
  // fastest take as much as they may.
  double LeastSpreadNs(double work_ns, double most_ns) const {
    double sum_ns = 0;
    for (const double speed : fastest_first_) {
      const double own_ns = std::min(most_ns, work_ns / speed);
      sum_ns += own_ns;
      work_ns -= own_ns * speed;
    }
    return work_ns > kSlack * all_[kWorkNs] ? kUnboundedNs : sum_ns;
  }

  void LookBehind() {
    std::vector<double> least_ns(forward_ns_.size(), kUnboundedNs);
    for (size_t messages = 0; messages < least_ns.size(); ++messages) {
      for (size_t i = 1; i + 1 < boundaries_.size(); ++i) {
        least_ns[messages] =
            std::min(least_ns[messages], forward_ns_[messages][i] + backward_ns_[messages][i]);
      }
    }
    for (size_t i = ranks_ - 1; i-- > 0;) {
      const Stage& next = stages_[i + 1];
      stages_[i].messages_ns = next.messages_ns + (i + 2 < ranks_ ? least_ns[next.messages] : 0);
    }
    if (ranks_ > 1 && boundaries_.size() > 2) {
      messages_ns_ = stages_.front().messages_ns + least_ns[stages_.front().messages];
    }
    fastest_first_ = problem_.speeds;
    std::sort(fastest_first_.begin(), fastest_first_.end(), std::greater<>());
    fastest_ = fastest_first_.front();
  }

  double LeastBetween(size_t begin, size_t end, BoundarySum sum) const {
    return std::max(0.0, boundaries_[end].least[sum] - boundaries_[begin].most[sum]);
  }

  // What a stage takes that ends at a boundary, wherever it begins.
  struct End {
    double forward_ns = 0, backward_ns = 0;  // its messages to the next stage
    double behind_ns = 0;                    // of one micro-batch, until it is back at the boundary
    double passed_ns = 0;                    // of all, one message after the other
  };

  void ListEnds(const Stage& stage) {
    ends_.clear();
    for (size_t i = 0; i < boundaries_.size(); ++i) {
      End end = {.forward_ns = forward_ns_[stage.messages][i],
                 .backward_ns = backward_ns_[stage.messages][i]};
      const double rest_ns = std::max(0.0, all_[turn_] - boundaries_[i].most[turn_]);
      end.behind_ns =
          end.forward_ns + end.backward_ns + rest_ns / stage.fastest + stage.messages_ns;
      end.passed_ns = end.behind_ns + (count_ - 1) * std::max(end.forward_ns, end.backward_ns);
      ends_.push_back(end);
    }
  }

  // Notes where the stage can end if it begins there.
  bool Extend(size_t index, size_t begin, std::vector<Reached>& next) {
    const Stage& stage = stages_[index];
    const size_t last = boundaries_.size() - 1;
    const bool is_last = is_in_order() && index + 1 == ranks_;
    const bool may_be_last = is_last || index == ranks_;
    // The last gradient that a rank sends back is part of what it sends, where that keeps it busy.
    const double back_ns =
        index == 0 || !problem_.sends_block ? 0 : backward_ns_[stages_[index - 1].messages][begin];
    const BoundarySums& before = boundaries_[begin].most;
    const Rates before_rates = RatesOf(index == 0 ? 0 : index - 1);
    const Reached from = AtLeast(reached_[begin], begin, before_rates);
    const double rest_ns = all_[kWorkNs] - step_ns_ * stage.speeds;
    bool is_any = false;
    size_t end = is_last ? last : begin + (boundaries_[begin].is_single ? 1 : 0);
    for (; end < (may_be_last ? last + 1 : last); ++end) {
      const Boundary& after = boundaries_[end];
      const End& own = ends_[end];
      // Its rank is at work, and sends where that keeps it busy, from when it is reached;
      const double work_ns = std::max(0.0, after.least[kWorkNs] - before[kWorkNs]) / stage.speed;
      if (from.fill_ns + work_ns > step_ns_) break;
      const double sends_ns = problem_.sends_block ? count_ * (own.forward_ns + back_ns) : 0;
      if (from.fill_ns + work_ns + sends_ns > step_ns_) continue;
      // its passes and what it sends are followed by the way back of the last micro-batch;
      const double turn_ns = std::max(0.0, after.least[turn_] - before[turn_]) / stage.speed;
      if (from.turn_ns - back_ns + count_ * turn_ns + sends_ns > step_ns_) continue;
      // a boundary is passed by one message after the other;
      if (from.turn_ns + turn_ns + own.passed_ns > step_ns_) continue;
      // no B comes before one micro-batch is back from the stages behind, and the last F is
      // followed by the way there and back; all others of the kind are in between;
      const double forward_ns = LeastBetween(begin, end, kForwardNs) / stage.speed;
      const double backward_ns = LeastBetween(begin, end, backward_) / stage.speed;
      const double kind_ns = problem_.sends_block
                                 ? std::max(forward_ns + own.forward_ns, backward_ns + back_ns)
                                 : std::max(forward_ns, backward_ns);
      const double all_ns = std::max(least_turn_ns_, from.turn_ns + turn_ns + own.behind_ns);
      if (all_ns + (count_ - 1) * kind_ns > step_ns_) continue;
      // the ranks behind can do the rest; and of what is in flight, one must have been behind the
      // stage before another one comes.
      if (after.most[kWorkNs] < rest_ns || !IsAfter(begin, end)) continue;
      const double turns = std::ceil(count_ / MostInFlight(stage, begin, end));
      if (!(from.turn_ns + turns * (turn_ns + own.behind_ns) <= step_ns_)) continue;
      is_any = true;
      Reach(index, begin, from, end, next[end]);
    }
    return is_any;
  }

  Rates RatesOf(size_t index) const {
    const Stage& stage = stages_[index];
    return {1 / stage.speed, stage.speeds_behind / stage.speed};
  }

  // What is noted of a boundary leaves out how much of a sum its own set has, at the rates of the
  // stage that ends there. Between two stages of the same rates the set then does not matter, and a
  // boundary that stands for several sets is no looser than one of them.
  Reached AtLeast(const Reached& noted, size_t boundary, const Rates& rates) const {
    const BoundarySums& least = boundaries_[boundary].least;
    return {noted.fill_ns + rates.of_time * least[kForwardNs],
            noted.turn_ns + rates.of_time * least[turn_],
            noted.lost_ns + rates.of_lost * least[kForwardNs],
            noted.lost_in_turns_ns + rates.of_lost * least[turn_]};
  }

  // Notes an end of the stage. `from`: AtLeast of its begin.
  void Reach(size_t index, size_t begin, const Reached& from, size_t end, Reached& to) const {
    const Stage& stage = stages_[index];
    const Rates before = RatesOf(index == 0 ? 0 : index - 1), own = RatesOf(index);
    const double there_ns = ends_[end].forward_ns, back_ns = ends_[end].backward_ns;
    const double sends_ns =
        problem_.sends_block ? count_ * stage.sending_speed * (there_ns + back_ns) : 0;
    const double next_speed = index + 1 < stages_.size() ? stages_[index + 1].waiting_speed : 0;
    const double back_speeds = stage.speeds_behind - (problem_.sends_block ? next_speed : 0);
    // Of the sum that the set at the begin has, and by what the stage has more at least.
    const auto take = [&](double& least_ns, double noted_ns, double from_ns, BoundarySum sum,
                          double before_rate, double own_rate, double messages_ns) {
      const double change = before_rate - own_rate;
      const Boundary& set = boundaries_[begin];
      const double by_set_ns = noted_ns + change * (change > 0 ? set.least : set.most)[sum];
      const double by_stage_ns =
          from_ns + own_rate * (LeastBetween(begin, end, sum) - boundaries_[end].least[sum]);
      least_ns = std::min(least_ns, std::max(by_set_ns, by_stage_ns) + messages_ns);
    };
    const Reached noted = reached_[begin];
    take(to.fill_ns, noted.fill_ns, from.fill_ns, kForwardNs, before.of_time, own.of_time,
         there_ns);
    take(to.turn_ns, noted.turn_ns, from.turn_ns, turn_, before.of_time, own.of_time,
         there_ns + back_ns);
    take(to.lost_ns, noted.lost_ns, from.lost_ns, kForwardNs, before.of_lost, own.of_lost,
         stage.speeds_behind * there_ns + sends_ns);
    take(to.lost_in_turns_ns, noted.lost_in_turns_ns, from.lost_in_turns_ns, turn_, before.of_lost,
         own.of_lost, stage.speeds_behind * there_ns + back_speeds * back_ns + sends_ns);
  }

  // One of two known sets of a graph may lack what the other has.
  bool IsAfter(size_t begin, size_t end) const {
    for (const BoundarySum sum : {kForwardNs, kTurnNs, kFusedTurnNs, kStashBytes, kResidentBytes}) {
      // Sums in different orders may differ a little.
      const double slack = kSlack * all_[sum];
      if (boundaries_[end].most[sum] + slack < boundaries_[begin].least[sum]) return false;
    }
    return true;
  }

  // 0 if not even one fits.
  double MostInFlight(const Stage& stage, size_t begin, size_t end) const {
    double stash_bytes = LeastBetween(begin, end, kStashBytes);
    if (problem_.keeps_inputs) {
      stash_bytes += static_cast<double>(boundaries_[begin].backward_bytes);
    }
    const double room_bytes = stage.memory_bytes - LeastBetween(begin, end, kResidentBytes);
    if (room_bytes < stash_bytes) return 0;
    if (stash_bytes == 0) return stage.most_in_flight;
    return std::min(stage.most_in_flight, std::floor(room_bytes / stash_bytes));
  }

  const StepBoundProblem& problem_;
  const absl::Span<const Boundary> boundaries_;
  const BoundarySum turn_;
  const BoundarySum backward_;
  const double count_;  // of micro-batches
  const BoundarySums all_;
  const size_t ranks_;
  const double all_speeds_;
  // The first of each rank; then, where ranks have several, one that stands for all others.
  std::vector<Stage> stages_;
  std::vector<std::vector<double>> forward_ns_, backward_ns_;  // index: boundary; the first: none
  std::vector<double> fastest_first_;                          // the speeds of the ranks
  double fastest_ = 1;
  double messages_ns_ = 0;  // of one micro-batch between all ranks, whatever the boundaries
  double step_ns_ = 0;
  double least_turn_ns_ = 0;
  std::vector<End> ends_;                // of the stage at hand; index: boundary
  std::vector<Reached> reached_, next_;  // index: boundary
};

}  // namespace

double StepBoundNs(const StepBoundProblem& problem, double at_least_ns, double enough_ns,
                   absl::FunctionRef<bool()> is_over) {
  Divisions divisions(problem);
  const double turn_bound_ns = LargestThatFails(
      at_least_ns, enough_ns, [] { return false; },
      [&](double step_ns) { return divisions.LeaveTimeForATurn(step_ns); });
  return LargestThatFails(turn_bound_ns, enough_ns, is_over,
                          [&](double step_ns) { return divisions.Pass(step_ns); });
}

}  // namespace stagecoach::partition
