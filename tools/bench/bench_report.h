#ifndef STAGECOACH_TOOLS_BENCH_BENCH_REPORT_H_
#define STAGECOACH_TOOLS_BENCH_BENCH_REPORT_H_

#include <string>

#include "tools/bench/bench_results.h"

namespace stagecoach::tools {

// A row of the fewest devices of the same model, precision, schedule and so on, by which a row's
// throughput is its speed-up; null if the row cannot be run, or none of those can.
const BenchRow* BaselineOf(const BenchResults& results, const BenchRow& row);

// A table for people of 80 columns or little more. Of models, precisions and so on, those that
// differ have columns. `shows_scaling`: speed-up and efficiency in place of prediction and bubble.
std::string ToTable(const BenchResults& results, bool shows_scaling);

// A line of names and one for each row, with all figures; CSV as in RFC 4180.
std::string ToCsv(const BenchResults& results);

// A page with all figures as a table, and the throughput of each row as a bar; with several numbers
// of devices, also a plot of it over them beside the line of linear scaling.
std::string ToHtml(const BenchResults& results);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_BENCH_BENCH_REPORT_H_
