#ifndef STAGECOACH_ENGINE_TRAIN_MEASURE_DEVICE_TIMER_H_
#define STAGECOACH_ENGINE_TRAIN_MEASURE_DEVICE_TIMER_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Times work of one device by the device's own clock, so that the host's time to issue it does not
// count while the device is busy. Errors are those of the device. Not thread-safe.
class DeviceTimer {
 public:
  static absl::StatusOr<DeviceTimer> Create(kernels::Device& device);

  // Returns the seconds that one call's work takes: the median of rounds of `repetitions` calls
  // each, after a round that does not count. `issue` is called in a job of the device's stream with
  // 0, 1, 2, ..., so that it can take operands in turn and no cache holds them.
  absl::StatusOr<double> Seconds(int repetitions,
                                 absl::FunctionRef<absl::Status(kernels::Stream&, int)> issue);

  // Returns memory that lives as long as this, filled with random numbers, uniform in [-1, 1], of
  // float32 or bfloat16. Products of zeros would be faster than those of numbers.
  absl::StatusOr<kernels::Tensor> Random(const kernels::Shape& shape, kernels::DType dtype);
  absl::StatusOr<std::byte*> Workspace(int64_t bytes);

  kernels::Device& device() { return *device_; }

 private:
  explicit DeviceTimer(kernels::Device& device) : device_(&device) {}
  absl::Status Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work);

  kernels::Device* device_;
  std::unique_ptr<kernels::Timeline> timeline_;
  std::vector<kernels::Buffer> memory_;
  uint64_t filled_ = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_MEASURE_DEVICE_TIMER_H_
