#ifndef STAGECOACH_PARTITION_COST_ANALYTIC_H_
#define STAGECOACH_PARTITION_COST_ANALYTIC_H_

#include "partition/cost/layer_cost.h"

namespace stagecoach::partition {

// The work of one operation of a layer for one micro-batch.
struct Work {
  double flops = 0;  // a multiply-add counts 2
  double bytes = 0;  // read and written in memory
};

struct LayerWork {
  Work forward;
  Work backward_input;
  Work backward_weight;
  Work backward_shared;  // the part of both that BW does once
  Work step;             // the optimizer's
};

// A device as the analytic model sees it. The defaults are those of one CPU core with 512-bit
// vectors; only ratios between layers decide where the cuts fall.
struct DeviceSpeed {
  double flops_per_second = 100e9;
  double bytes_per_second = 20e9;
  double overhead_ns = 2000;  // for starting one operation
};

// Returns the roofline estimate: the larger of computing and moving, plus the overhead; 0 for an
// operation without work.
double EstimateNs(const Work& work, const DeviceSpeed& device);

// Fills the times of `cost`.
void EstimateTimes(const LayerWork& work, const DeviceSpeed& device, LayerCost& cost);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_ANALYTIC_H_
