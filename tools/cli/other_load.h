#ifndef STAGECOACH_TOOLS_CLI_OTHER_LOAD_H_
#define STAGECOACH_TOOLS_CLI_OTHER_LOAD_H_

#include <cstdint>
#include <set>
#include <string>

#include "absl/time/time.h"

namespace stagecoach::tools {

// How long the processors of these numbers have been at work, for whatever or whomever, by the text
// of /proc/stat: other machines of the same host (steal) included. In its unit, 1/100 s.
int64_t BusyTicks(const std::string& proc_stat, const std::set<int>& processors);

// "other programs took 35 % of the processors meanwhile" of a share of more than a tenth, else "".
std::string DescribeOtherLoad(double share);

// What others take of the processors that this process may use, from the beginning of its life on:
// what is measured meanwhile takes longer than it need.
class OtherLoad {
 public:
  OtherLoad();

  // A share of those processors' time; 0 where nothing is known, as in the first fifth of a second:
  // it is counted in steps of 10 ms.
  double Share() const;

 private:
  struct Sample {
    absl::Time time;
    absl::Duration busy;  // of all processors
    absl::Duration own;   // of this process
  };
  Sample Now() const;

  const std::set<int> processors_;
  const Sample start_;
};

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_OTHER_LOAD_H_
