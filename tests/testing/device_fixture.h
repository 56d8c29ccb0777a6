#ifndef STAGECOACH_TESTS_TESTING_DEVICE_FIXTURE_H_
#define STAGECOACH_TESTS_TESTING_DEVICE_FIXTURE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/device.h"
#include "kernels/ops/ops.h"
#include "kernels/tensor.h"

namespace stagecoach::testing {

// A CPU device with the memory of one test, whose addresses the host can read and write. Every
// piece of memory is followed by guard bytes; the destructor fails the test if an operation wrote
// to them.
class TestDevice {
 public:
  explicit TestDevice(int threads = 1, kernels::Precision precision = kernels::Precision::kFloat32);
  ~TestDevice();
  TestDevice(const TestDevice&) = delete;
  TestDevice& operator=(const TestDevice&) = delete;

  kernels::Device& device() { return *device_; }
  kernels::Ops& ops() { return device_->ops(); }

  // Allocates memory that lives as long as this device. Operands hold `values`, as float32 or
  // rounded to bfloat16; results and workspaces hold bytes 0xFF, which read as NaN, so that reading
  // before writing is noticed.
  kernels::Tensor Operand(const kernels::Shape& shape, absl::Span<const float> values,
                          kernels::DType dtype = kernels::DType::kFloat32);
  kernels::Tensor Labels(absl::Span<const int32_t> labels);
  kernels::Tensor Result(const kernels::Shape& shape,
                         kernels::DType dtype = kernels::DType::kFloat32);
  std::byte* Workspace(int64_t bytes);

  // Runs `work` as a job of the device's stream, waits, and returns its result.
  absl::Status Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work);

  // Returns the elements of a tensor of numbers of 2 bytes or more.
  static std::vector<double> Values(const kernels::Tensor& tensor);

 private:
  struct Guarded {
    kernels::Buffer buffer;
    int64_t bytes;  // without the guard
  };

  std::unique_ptr<kernels::Device> device_;
  std::vector<Guarded> memory_;
};

// Returns the tensor's bytes, to compare results that must have the same bits.
absl::Span<const std::byte> BytesOf(const kernels::Tensor& tensor);

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_DEVICE_FIXTURE_H_
