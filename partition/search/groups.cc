#include "partition/search/groups.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace stagecoach::partition {
namespace {

constexpr double kForbidden = std::numeric_limits<double>::infinity();

absl::Status CheckProblem(const GroupProblem& problem) {
  STAGECOACH_CHECK(problem.stage_ns != nullptr, "a problem needs the time of its stages");
  if (problem.stages < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut layers into %d stages: expected at least 1", problem.stages));
  }
  if (problem.stages > problem.layers) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot cut %d layers into %d stages: every stage needs a layer of its own",
                        problem.layers, problem.stages));
  }
  if (problem.stages > problem.devices) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "cannot spread %d stages over %d devices: every stage needs a device of its own",
        problem.stages, problem.devices));
  }
  return absl::OkStatus();
}

// From the back. A state is where a stage begins: a layer and a device, of which each earlier stage
// has at least one. A choice is where the next stage begins.
class GroupSolver {
 public:
  // The problem must outlive the solver.
  explicit GroupSolver(const GroupProblem& problem)
      : problem_(problem),
        layer_states_(problem.layers - problem.stages + 1),
        device_states_(problem.devices - problem.stages + 1) {}

  absl::StatusOr<GroupCut> Solve() {
    const double bottleneck_ns = ForEachState([this](const State& state) { return Least(state); });
    if (bottleneck_ns == kForbidden) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("no cut of %d layers into %d stages on %d devices is allowed",
                          problem_.layers, problem_.stages, problem_.devices));
    }
    choices_.resize(static_cast<size_t>(problem_.stages) * num_states());
    ForEachState(
        [this, bottleneck_ns](const State& state) { return LeastSum(state, bottleneck_ns); });
    GroupCut cut;
    cut.bottleneck_ns = bottleneck_ns;
    State state;
    for (int stage = 0; stage < problem_.stages; ++stage) {
      const State next = choices_[ChoiceIndex(state)];
      cut.first_layer.push_back(state.layer);
      cut.devices.push_back(next.device - state.device);
      state = next;
    }
    return cut;
  }

 private:
  struct State {
    int stage = 0;
    int layer = 0;
    int device = 0;
  };

  size_t num_states() const { return static_cast<size_t>(layer_states_) * device_states_; }
  size_t Index(const State& state) const {
    return static_cast<size_t>(state.layer - state.stage) * device_states_ +
           static_cast<size_t>(state.device - state.stage);
  }
  size_t ChoiceIndex(const State& state) const {
    return static_cast<size_t>(state.stage) * num_states() + Index(state);
  }

  // Fills a value for every state, the last stage's first, each from next_values_, those of the
  // stage after it. Returns that of the whole problem.
  double ForEachState(absl::FunctionRef<double(const State&)> value_of) {
    next_values_.assign(num_states(), kForbidden);
    next_values_.back() = 0;  // behind the last stage no layer and no device may be left
    std::vector<double> values(num_states());
    for (int stage = problem_.stages - 1; stage >= 0; --stage) {
      for (int layer = stage; layer < (stage == 0 ? 1 : stage + layer_states_); ++layer) {
        for (int device = stage; device < (stage == 0 ? 1 : stage + device_states_); ++device) {
          const State state = {stage, layer, device};
          values[Index(state)] = value_of(state);
        }
      }
      std::swap(values, next_values_);
    }
    return next_values_[0];
  }

  // In lexicographic order.
  void ForEachChoice(const State& state, absl::FunctionRef<void(const State&, double)> look) {
    const int next = state.stage + 1;
    for (int layer = state.layer + 1; layer < next + layer_states_; ++layer) {
      for (int device = state.device + 1; device < next + device_states_; ++device) {
        const State choice = {next, layer, device};
        look(choice, next_values_[Index(choice)]);
      }
    }
  }

  double StageNs(const State& state, const State& next) const {
    return problem_.stage_ns({.first = state.layer,
                              .last = next.layer - 1,
                              .index = state.stage,
                              .first_device = state.device,
                              .devices = next.device - state.device});
  }

  // The least bottleneck from a state on.
  double Least(const State& state) {
    double least = kForbidden;
    ForEachChoice(state, [&](const State& next, double after) {
      if (after < least) least = std::min(least, std::max(after, StageNs(state, next)));
    });
    return least;
  }

  // The least sum of stage times from a state on, none above the bottleneck.
  double LeastSum(const State& state, double bottleneck_ns) {
    double least = kForbidden;
    ForEachChoice(state, [&](const State& next, double after) {
      if (after >= least) return;
      const double ns = StageNs(state, next);
      if (ns > bottleneck_ns || ns + after >= least) return;
      least = ns + after;
      choices_[ChoiceIndex(state)] = next;
    });
    return least;
  }

  const GroupProblem& problem_;
  const int layer_states_;   // how many layers can be the first of one stage
  const int device_states_;  // likewise
  std::vector<double> next_values_;
  std::vector<State> choices_;
};

}  // namespace

absl::StatusOr<GroupCut> PartitionOverGroups(const GroupProblem& problem) {
  RETURN_IF_ERROR(CheckProblem(problem));
  return GroupSolver(problem).Solve();
}

}  // namespace stagecoach::partition
