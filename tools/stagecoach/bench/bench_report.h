#ifndef STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_REPORT_H_
#define STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_REPORT_H_

#include <optional>
#include <string>

#include "tools/stagecoach/bench/bench_results.h"

namespace stagecoach::tools {

// Returns the row with the fewest devices of the same work (AreSameWork) and schedule, relative to
// which a row's throughput is its speed-up; null if the row cannot be run, or none of those can.
const BenchRow* BaselineOf(const BenchResults& results, const BenchRow& row, BenchScaling scaling);

// Returns a table for people, of 80 columns or little more. Models, precisions and so on have
// columns if they differ. `scaling` shows speed-up and efficiency instead of prediction and bubble.
std::string ToTable(const BenchResults& results, std::optional<BenchScaling> scaling);

// Returns a line of names and one for each row, with all values; CSV as in RFC 4180.
std::string ToCsv(const BenchResults& results);

// Returns a page with all values as a table, and the throughput of each row as a bar; with several
// numbers of devices, also a plot of it over them next to the line of linear scaling.
std::string ToHtml(const BenchResults& results, BenchScaling scaling);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_BENCH_BENCH_REPORT_H_
