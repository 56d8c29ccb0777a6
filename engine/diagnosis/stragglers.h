#ifndef STAGECOACH_ENGINE_DIAGNOSIS_STRAGGLERS_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_STRAGGLERS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// The speed at which a rank computes. Times are per step.
struct StepTime {
  int64_t before_ns = 0;  // computing, early in the run: the median
  int64_t least_ns = 0;   // computing, recently: the minimum, and the median
  int64_t median_ns = 0;
  int64_t step_ns = 0;  // whole steps, recently: the mean
  int64_t steps = 0;    // number of recent ones

  friend bool operator==(const StepTime&, const StepTime&) = default;
};
// Returns a text for other processes: numbers separated by spaces.
std::string ToText(const StepTime& step_time);
// Returns nothing if it is no such text.
std::optional<StepTime> StepTimeFromText(absl::string_view text);

// Measures a rank's step time by samples: a sample is one step, or as many as take a quarter of a
// second, since the system's scheduler makes shorter ones too different to be compared. Allocates
// nothing.
class StepTimeMeter {
 public:
  static constexpr int kSamples = 20;  // recent ones, and early ones
  static constexpr int64_t kLeastSampleNs = 250'000'000;

  // Adds the step of that number, with the time spent on computing. True: a sample ends with it.
  bool Add(int64_t step, int64_t compute_ns, int64_t step_ns);
  // Returns a value once there are kSamples early and recent samples; the very first does not
  // count.
  std::optional<StepTime> step_time() const;

 private:
  struct Sample {
    int64_t compute_ns = 0, step_ns = 0;  // per step
    int64_t last_step = 0;
  };

  int64_t steps_ = 0, compute_ns_ = 0, step_ns_ = 0;  // of the unfinished sample
  int64_t samples_ = 0;
  std::array<Sample, kSamples + 1> last_ = {};  // by number; one more, for their beginning
  int64_t before_ns_ = 0;
};

// Finds ranks that have become slow. A rank is slow if, in every recent sample, its computing has
// taken 1.5 times as long as before, also relative to the slowdown of the other ranks (their
// median), so that no rank is blamed for a machine that has become slow; or 1.5 times as long as in
// the other replicas of its stage, recently; and if that makes up a twentieth of a step.
class StragglerDetector {
 public:
  static constexpr double kFactor = 1.5;

  // `names`: those of all devices, "rank 2 (stage 2, replica 0)"; those of a stage's replicas one
  // after the other.
  StragglerDetector(std::vector<std::string> names, int replicas);

  // Returns a sentence for each device that has become slow, which is repeated only after the
  // device was not slow. Allocates nothing as long as no device becomes slow. `step_times`: those
  // of all devices, as far as known.
  std::vector<std::string> Judge(absl::Span<const std::optional<StepTime>> step_times);

 private:
  struct Bound {
    double ns;  // from which on the device is slow
    bool is_of_replicas;
  };
  std::optional<Bound> BoundOf(absl::Span<const std::optional<StepTime>> step_times, size_t device);

  const std::vector<std::string> names_;
  const size_t replicas_;
  std::vector<bool> is_slow_;
  std::vector<double> ratios_;        // of the other devices: scratch
  std::vector<int64_t> of_replicas_;  // likewise
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_STRAGGLERS_H_
