#ifndef STAGECOACH_BENCH_DEVICE_TIMER_H_
#define STAGECOACH_BENCH_DEVICE_TIMER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::bench {

// Times work of one device by the device's own clock, so that what the host takes to issue it does
// not count while the device is busy. Ends the program at the first error. Not thread-safe.
class DeviceTimer {
 public:
  explicit DeviceTimer(kernels::Device& device);

  // Seconds that one call's work takes: the median of rounds of `repetitions` calls each, after a
  // round that does not count. `issue` is called in a job of the device's stream with 0, 1, 2, ...,
  // so that it can take operands in turn and no cache holds them.
  double Seconds(int repetitions, absl::FunctionRef<absl::Status(kernels::Stream&, int)> issue);

  // Memory that lives as long as this, filled with random numbers, uniform in [-1, 1], of float32
  // or bfloat16. Products of zeros would be faster than those of numbers.
  kernels::Tensor Random(const kernels::Shape& shape, kernels::DType dtype);
  std::byte* Workspace(int64_t bytes);

  kernels::Device& device() { return device_; }

 private:
  void Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work);

  kernels::Device& device_;
  std::unique_ptr<kernels::Timeline> timeline_;
  std::vector<kernels::Buffer> memory_;
  uint64_t filled_ = 0;
};

}  // namespace stagecoach::bench

#endif  // STAGECOACH_BENCH_DEVICE_TIMER_H_
