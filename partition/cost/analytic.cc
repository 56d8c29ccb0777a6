#include "partition/cost/analytic.h"

#include <algorithm>

namespace stagecoach::partition {

double EstimateNs(const Work& work, const DeviceSpeed& device) {
  if (work.flops == 0 && work.bytes == 0) return 0;
  const double seconds =
      std::max(work.flops / device.flops_per_second, work.bytes / device.bytes_per_second);
  return seconds * 1e9 + device.overhead_ns;
}

void EstimateTimes(const LayerWork& work, const DeviceSpeed& device, LayerCost& cost) {
  cost.forward_ns = EstimateNs(work.forward, device);
  cost.backward_input_ns = EstimateNs(work.backward_input, device);
  cost.backward_weight_ns = EstimateNs(work.backward_weight, device);
  cost.shared_backward_ns = EstimateNs(work.backward_shared, device);
  cost.step_ns = EstimateNs(work.step, device);
}

}  // namespace stagecoach::partition
