#ifndef STAGECOACH_TOOLS_STAGECOACH_TERMINAL_OTHER_LOAD_H_
#define STAGECOACH_TOOLS_STAGECOACH_TERMINAL_OTHER_LOAD_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/time/time.h"

namespace stagecoach::tools {

// Returns how long the processors of these numbers have been busy, with any program, by the text of
// /proc/stat, including other machines of the same host (steal). The unit is 1/100 s.
int64_t BusyTicks(const std::string& proc_stat, const std::set<int>& processors);

// The counts up to some moment.
struct LoadSample {
  absl::Time time;
  absl::Duration busy;  // of all processors that this process may use, summed
  absl::Duration own;   // of this process
};

// Returns the share of the time of N processors that others took between two samples, from 0 to 1.
// Returns 0 if nothing is known: without processors, and for less than a fifth of a second, since
// busy time is counted in steps of 10 ms.
double ShareOfOthers(const LoadSample& start, const LoadSample& end, int64_t processors);

// Returns "other programs took 35 % of the processors meanwhile" for a share of more than a tenth,
// else "".
std::string DescribeOtherLoad(double share);

// Measures the share of the processors available to this process that others have taken since this
// object was created; what is measured meanwhile takes longer than it should.
class OtherLoad {
 public:
  OtherLoad();

  // Returns ShareOfOthers until now.
  double Share() const;

 private:
  LoadSample Now() const;

  const std::set<int> processors_;
  const LoadSample start_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TERMINAL_OTHER_LOAD_H_
