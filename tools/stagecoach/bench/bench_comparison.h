#ifndef STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_COMPARISON_H_
#define STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_COMPARISON_H_

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/stagecoach/bench/bench_results.h"

namespace stagecoach::tools {

enum class BenchVerdict : uint8_t {
  kFaster,
  kSlower,
  kNoise,   // the confidence intervals of the medians overlap
  kBroken,  // it ran before, and now it cannot
  kMended,
};

// A case of two results.
struct BenchChange {
  BenchCase what;
  double before_ms = 0, after_ms = 0;  // 0 if it could not be run
  BenchVerdict verdict = BenchVerdict::kNoise;
};

// The changes from one bench to another.
struct BenchComparison {
  std::vector<BenchChange> changes;       // of the cases that both have, in the order of the first
  std::vector<BenchCase> removed, added;  // those that only one has
  bool is_other_machine = false;          // or other library versions: times then say little
  bool has_other_options = false;         // BenchResults::options
  bool is_worse() const;
};

BenchComparison CompareBenches(const BenchResults& before, const BenchResults& after);

// Returns a table for people, and a line for each case that only one has, and for other conditions.
std::string ToText(const BenchComparison& comparison);
// Returns {"rows": [{"schedule", ..., "before_ms", "after_ms", "change", "verdict"}], "removed",
// "added", "other_machine", "other_options"}.
nlohmann::ordered_json ToJson(const BenchComparison& comparison);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_COMPARISON_H_
