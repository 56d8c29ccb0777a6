#ifndef STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_RUNNER_H_
#define STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_RUNNER_H_

#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "absl/status/statusor.h"
#include "engine/session/run_config.h"
#include "partition/cost/profile.h"
#include "tools/stagecoach/bench/bench_case.h"
#include "tools/stagecoach/bench/bench_results.h"

namespace stagecoach::tools {

struct BenchOptions {
  engine::RunConfig run;  // all that a case does not say
  int warm_up = 2;        // steps that do not count
  int repeats = 7;        // and that do, for each visit of a case
  bool predicts = true;
  // Called with what is being done: "measures the layers of default". May be empty.
  std::function<void(const std::string& what)> on_progress;
};

// Trains cases, one at a time, on random data in this process. Layers are measured once for each
// micro-batch size, the exchange for each number of replicas, and the peak once for each number of
// devices.
class BenchRunner {
 public:
  explicit BenchRunner(BenchOptions options);

  // Appends the steps of one visit to the row of a case, which has those of earlier visits, and
  // sets everything else. What is wrong with the case alone becomes its error. Cancelled: by a
  // signal.
  absl::Status Measure(BenchRow& row);
  // Returns the error of the first row that could not be run; OK: there was none.
  const absl::Status& first_error() const { return first_error_; }

 private:
  absl::Status Train(BenchRow& row);
  absl::Status Predict(const engine::RunConfig& options, const engine::PlannedModel& planned,
                       const engine::PreparedRun& prepared, BenchRow& row);
  absl::StatusOr<const partition::Profile*> ProfileFor(const engine::RunConfig& options,
                                                       const engine::PlannedModel& planned,
                                                       const engine::PreparedRun& prepared,
                                                       const BenchCase& what);
  // Returns the bytes per second of replicas that exchange gradients.
  absl::StatusOr<double> ExchangeFor(const engine::PreparedRun& prepared);
  absl::StatusOr<schedule::HostLink> HostLinkFor(const engine::PreparedRun& prepared);
  absl::StatusOr<double> PeakFor(const BenchCase& what, const engine::PreparedRun& prepared);
  void Tell(const std::string& what) const;

  const BenchOptions options_;
  absl::Status first_error_;
  // The layers' measured profile by model, precision, threads, concurrent devices, samples, and
  // whether updates are separate.
  std::map<std::tuple<std::string, std::string, int, int, int64_t, bool>, partition::Profile>
      profiles_;
  std::map<std::tuple<int, int>, double> exchanges_;  // by threads, and replicas
  std::map<int, schedule::HostLink> host_links_;      // by threads
  // The peak by precision, threads of a device, and devices.
  std::map<std::tuple<std::string, int, int>, double> peaks_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_RUNNER_H_
