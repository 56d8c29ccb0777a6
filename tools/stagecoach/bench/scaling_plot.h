#ifndef STAGECOACH_TOOLS_STAGECOACH_BENCH_SCALING_PLOT_H_
#define STAGECOACH_TOOLS_STAGECOACH_BENCH_SCALING_PLOT_H_

#include <string>

#include "tools/stagecoach/bench/bench_results.h"

namespace stagecoach::tools {

// CSS rules of the pictures below, which use the colors of a page of schedule/render/html.h.
extern const char kBenchStyle[];

// Returns a bar for the throughput of each row that can be run, with the interval of its median as
// a line across its end. SVG, for embedding in a page.
std::string ThroughputBars(const BenchResults& results);

// Returns a plot of throughput over the number of devices, both axes from 0: a line for the same
// work (AreSameWork) and schedule on several numbers of devices, and a dashed one for linear
// scaling from its first point. Replicas have lines of their own, unless they are all that differs.
// "" if there is none.
std::string ScalingPlot(const BenchResults& results, BenchScaling scaling);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_BENCH_SCALING_PLOT_H_
