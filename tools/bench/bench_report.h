#ifndef STAGECOACH_TOOLS_BENCH_BENCH_REPORT_H_
#define STAGECOACH_TOOLS_BENCH_BENCH_REPORT_H_

#include <optional>
#include <string>

#include "tools/bench/bench_results.h"

namespace stagecoach::tools {

// The row of the fewest devices of the same work (AreSameWork) and schedule, by which a row's
// throughput is its speed-up; null if the row cannot be run, or none of those can.
const BenchRow* BaselineOf(const BenchResults& results, const BenchRow& row, BenchScaling scaling);

// A table for people of 80 columns or little more. Of models, precisions and so on, those that
// differ have columns. `scaling`: shows speed-up and efficiency in place of prediction and bubble.
std::string ToTable(const BenchResults& results, std::optional<BenchScaling> scaling);

// A line of names and one for each row, with all figures; CSV as in RFC 4180.
std::string ToCsv(const BenchResults& results);

// A page with all figures as a table, and the throughput of each row as a bar; with several numbers
// of devices, also a plot of it over them beside the line of linear scaling.
std::string ToHtml(const BenchResults& results, BenchScaling scaling);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_BENCH_BENCH_REPORT_H_
