#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_HISTORY_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_HISTORY_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace stagecoach::tools {

// How a run has gone, from the events of its steps and evaluations (run_events.h), as its page
// draws it.
class RunHistory {
 public:
  using Points = std::vector<std::pair<double, double>>;  // by step of the run, ascending

  // Adds a step. `loss`: NaN if it was skipped; `speed`: in tokens, or else samples, a second.
  void AddStep(int64_t step, double loss, double learning_rate, double speed);
  // Adds an event; others than those of steps and evaluations are passed over.
  void Add(const nlohmann::ordered_json& event);
  // Adds the events in a file of metrics.
  absl::Status Read(const std::string& path);

  // Of the steps: as many points as a plot has room for, each the mean of some steps that follow
  // each other.
  Points losses() const;
  Points learning_rates() const;
  Points speeds() const;

  // Returns a value of each evaluation that has it, such as "test_loss".
  Points Evaluated(const std::string& name) const;

  int64_t last_step() const { return last_step_; }

 private:
  struct Steps {
    int64_t steps = 0, losses = 0;
    double step = 0.0, loss = 0.0, learning_rate = 0.0, speed = 0.0;  // sums
    void Add(const Steps& other);
  };
  void AddSteps(const Steps& steps);
  Points MeanOf(double Steps::*sum) const;

  std::vector<Steps> steps_;
  int64_t steps_each_ = 1;  // of `steps_`, but for the last
  std::vector<std::pair<int64_t, std::vector<std::pair<std::string, double>>>> evaluations_;
  int64_t last_step_ = 0;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_HISTORY_H_
