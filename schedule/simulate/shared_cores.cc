#include "schedule/simulate/shared_cores.h"

#include <algorithm>
#include <set>
#include <vector>

#include "base/check.h"

namespace stagecoach::schedule {
namespace {

constexpr double kDoneNs = 1e-3;  // what rounding may leave of an action

class Sharing {
 public:
  Sharing(const Schedule& schedule, const Costs& costs, double cores)
      : schedule_(schedule), costs_(costs), cores_(cores), ranks_(schedule.actions.size()) {}

  double StepNs() {
    double now_ns = 0.0;
    while (true) {
      std::vector<size_t> working;
      size_t finished = 0;
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (ranks_[rank].next == schedule_.actions[rank].size()) {
          ++finished;
        } else if (IsWorking(rank)) {
          working.push_back(rank);
        }
      }
      if (finished == ranks_.size()) return now_ns;
      STAGECOACH_CHECK(!working.empty(), "the schedule never finishes");
      const double speed = std::min(1.0, cores_ / working.size());
      double left_ns = ranks_[working.front()].left_ns;
      for (const size_t rank : working) left_ns = std::min(left_ns, ranks_[rank].left_ns);
      now_ns += left_ns / speed;
      for (const size_t rank : working) Advance(rank, left_ns);
    }
  }

 private:
  struct RankState {
    size_t next = 0;  // action
    bool has_begun = false;
    double left_ns = 0.0;  // of that action, at full speed
  };

  const Action& NextOf(size_t rank) const { return schedule_.actions[rank][ranks_[rank].next]; }

  double DurationNs(const Action& action) const {
    const StageTimes& times = costs_.of(action.stage);
    const bool is_last = action.micro_batch.value() + 1 == schedule_.num_micro_batches;
    const auto step_ns = static_cast<double>(is_last ? times.step_ns : 0);
    switch (action.op) {
      case Op::kForward:
        return static_cast<double>(times.forward_ns);
      case Op::kBackwardInput:
        return static_cast<double>(times.backward_input_ns);
      case Op::kBackwardWeight:
        return static_cast<double>(times.backward_weight_ns) + step_ns;
      default:
        return static_cast<double>(times.backward_ns) + step_ns;
    }
  }

  bool HasInputs(const Action& action) const {
    if (action.op == Op::kBackwardWeight) return true;
    const bool forward = action.op == Op::kForward;
    if (forward ? schedule_.is_first(action.stage) : schedule_.is_last(action.stage)) return true;
    const StageId giver(action.stage.value() + (forward ? -1 : 1));
    return done_.count({.op = forward ? Op::kForward : Op::kBackward,
                        .stage = giver,
                        .micro_batch = action.micro_batch}) > 0;
  }

  bool IsWorking(size_t rank) {
    RankState& state = ranks_[rank];
    if (!state.has_begun && HasInputs(NextOf(rank))) {
      state = {.next = state.next, .has_begun = true, .left_ns = DurationNs(NextOf(rank))};
    }
    return state.has_begun;
  }

  void Advance(size_t rank, double by_ns) {
    RankState& state = ranks_[rank];
    state.left_ns -= by_ns;
    if (state.left_ns > kDoneNs) return;
    const Action& action = NextOf(rank);
    if (action.op != Op::kBackwardWeight) {
      done_.insert({.op = action.op == Op::kForward ? Op::kForward : Op::kBackward,
                    .stage = action.stage,
                    .micro_batch = action.micro_batch});
    }
    state = {.next = state.next + 1};
  }

  const Schedule& schedule_;
  const Costs& costs_;
  const double cores_;
  std::vector<RankState> ranks_;
  std::set<Action> done_;  // what others may wait for; B counts as BW
};

}  // namespace

double SharedCoresStepNs(const Schedule& schedule, const Costs& costs, double cores) {
  return Sharing(schedule, costs, cores).StepNs();
}

}  // namespace stagecoach::schedule
