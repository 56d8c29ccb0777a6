#ifndef STAGECOACH_PARTITION_ANALYTIC_H_
#define STAGECOACH_PARTITION_ANALYTIC_H_

#include "partition/layer_cost.h"

namespace stagecoach::partition {

// What one operation of a layer does for one micro-batch.
struct Work {
  double flops = 0;  // a multiply-add counts 2
  double bytes = 0;  // read and written in memory
};

struct LayerWork {
  Work forward;
  Work backward_input;
  Work backward_weight;
  Work backward_shared;  // of both, what BW does once
  Work step;             // of the optimizer
};

// A device as the analytic model sees it. The defaults are those of one CPU core with 512-bit
// vectors; only ratios between layers matter for where the cuts fall.
struct DeviceSpeed {
  double flops_per_second = 100e9;
  double bytes_per_second = 20e9;
  double overhead_ns = 2000;  // of starting one operation
};

// Roofline: the larger of computing and moving, plus the overhead; 0 for an operation without work.
double EstimateNs(const Work& work, const DeviceSpeed& device);

// Fills the times of `cost`.
void EstimateTimes(const LayerWork& work, const DeviceSpeed& device, LayerCost& cost);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_ANALYTIC_H_
