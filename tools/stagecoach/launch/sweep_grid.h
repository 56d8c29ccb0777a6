#ifndef STAGECOACH_TOOLS_STAGECOACH_LAUNCH_SWEEP_GRID_H_
#define STAGECOACH_TOOLS_STAGECOACH_LAUNCH_SWEEP_GRID_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace stagecoach::tools {

// A flag of which a sweep tries several values.
struct SweptFlag {
  std::string name;  // "seed", for --seed
  std::vector<std::string> values;
};

// Reads "seed=1,2,3" or "seed=1..3". InvalidArgument: it is neither, or a value is there twice.
absl::StatusOr<SweptFlag> ParseSweptFlag(const std::string& text);

// One run: a value for each flag, in their order.
using SweptValues = std::vector<std::string>;

// Returns all combinations; the last flag changes fastest.
std::vector<SweptValues> Combinations(absl::Span<const SweptFlag> flags);

// Returns "seed=1 learning-rate=1e-3".
std::string Describe(absl::Span<const SweptFlag> flags, const SweptValues& values);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_LAUNCH_SWEEP_GRID_H_
