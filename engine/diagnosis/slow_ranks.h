#ifndef STAGECOACH_ENGINE_DIAGNOSIS_SLOW_RANKS_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_SLOW_RANKS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// How fast a rank computes. Times are of one step.
struct Pace {
  int64_t before_ns = 0;  // computing, early in the run: the median
  int64_t least_ns = 0;   // computing, of late: the least, and the median
  int64_t median_ns = 0;
  int64_t step_ns = 0;  // all of a step, of late: the mean
  int64_t steps = 0;    // how many "of late" are

  friend bool operator==(const Pace&, const Pace&) = default;
};
// For other processes: numbers with spaces between.
std::string ToText(const Pace& pace);
// Nothing if it is no such text.
std::optional<Pace> PaceFromText(absl::string_view text);

// Measures a rank's pace by samples: a sample is one step, or as many as take a quarter of a
// second, since the system's scheduler makes shorter ones too different to be compared. Allocates
// nothing.
class PaceMeter {
 public:
  static constexpr int kSamples = 20;  // of late, and before
  static constexpr int64_t kLeastSampleNs = 250'000'000;

  // The step of that number, in which computing has taken so long. True: a sample ends with it.
  bool Add(int64_t step, int64_t compute_ns, int64_t step_ns);
  // Once there are so many samples of before and of late; the first of all does not count.
  std::optional<Pace> pace() const;

 private:
  struct Sample {
    int64_t compute_ns = 0, step_ns = 0;  // of one of its steps
    int64_t last_step = 0;
  };

  int64_t steps_ = 0, compute_ns_ = 0, step_ns_ = 0;  // of the sample that has not ended
  int64_t samples_ = 0;
  std::array<Sample, kSamples + 1> last_ = {};  // by number; one more, for where they begin
  int64_t before_ns_ = 0;
};

// Finds ranks that have become slow. One is if, in every sample of late, its computing has taken
// 1.5 times as long as before, and as much more than the other ranks' has (their median), so that
// no rank is blamed for a machine that has become slow; or 1.5 times as long as in the other
// replicas of its stage, of late; and if that makes up a twentieth of a step.
class SlowRanks {
 public:
  static constexpr double kFactor = 1.5;

  // `names`: of all devices, "rank 2 (stage 2, replica 0)"; those of a stage's replicas one after
  // the other.
  SlowRanks(std::vector<std::string> names, int replicas);

  // Allocates nothing as long as no device becomes slow. A sentence for each that is, which comes
  // again only after it was not. `paces`: of all devices, as far as they are known.
  std::vector<std::string> Judge(absl::Span<const std::optional<Pace>> paces);

 private:
  struct Bound {
    double ns;  // at which the device is slow
    bool is_of_replicas;
  };
  std::optional<Bound> BoundOf(absl::Span<const std::optional<Pace>> paces, size_t device);

  const std::vector<std::string> names_;
  const size_t replicas_;
  std::vector<bool> is_slow_;
  std::vector<double> ratios_;        // of the other devices: scratch
  std::vector<int64_t> of_replicas_;  // likewise
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_SLOW_RANKS_H_
