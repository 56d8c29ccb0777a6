#ifndef STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_PROGRESS_H_
#define STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_PROGRESS_H_

#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tools/stagecoach/bench/bench_case.h"

namespace stagecoach::tools {

// Shows on the terminal what is done, and how long the rest takes. Without a terminal, shows
// nothing.
class BenchProgress {
 public:
  // `done` of `all` visits of all rows were made before.
  BenchProgress(int done, int all) : done_(done), all_(all) {}
  ~BenchProgress();
  BenchProgress(const BenchProgress&) = delete;
  BenchProgress& operator=(const BenchProgress&) = delete;

  void Begin(const BenchCase& what) { what_ = ToString(what); }
  void Tell(const std::string& doing) const;
  // Records that a visit has been made, and that `given_up` others will not be.
  void End(int given_up);

 private:
  int done_, measured_ = 0;
  int all_;
  std::string what_;
  const absl::Time start_ = absl::Now();
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_PROGRESS_H_
