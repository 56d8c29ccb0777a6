#ifndef STAGECOACH_TESTS_KERNELS_CUDA_GPU_BENCH_H_
#define STAGECOACH_TESTS_KERNELS_CUDA_GPU_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "kernels/ops/ops.h"
#include "kernels/tensor.h"

namespace stagecoach::testing {

// Tests of what every CUDA device must do, a GPU or the stand-in of one: they use the backend that
// CudaBackend::Load finds. Skipped, with the reason, where there is no GPU; there they fail if
// $STAGECOACH_REQUIRE_GPU is 1.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override;
};

// A CUDA device with the memory of one test. An error of its own making ends the program. Every
// tensor is an allocation of its own, so that the stand-in of CUDA sees what is written beside it.
class GpuBench {
 public:
  explicit GpuBench(kernels::Precision precision);

  kernels::Device& device() { return *device_; }
  kernels::Ops& ops() { return device_->ops(); }

  // Memory that lives as long as this. Operands hold `values`, rounded to the type; results and
  // workspaces hold bytes 0xFF, which read as not-a-number.
  kernels::Tensor Operand(const kernels::Shape& shape, absl::Span<const float> values,
                          kernels::DType dtype);
  kernels::Tensor Result(const kernels::Shape& shape, kernels::DType dtype);
  std::byte* Workspace(int64_t bytes);

  // Runs `work` as a job of the stream, waits for what it issued, and returns the first error.
  absl::Status Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work);

  // What a tensor of float32 or bfloat16 holds.
  std::vector<double> Values(const kernels::Tensor& tensor);
  std::vector<std::byte> Bytes(const kernels::Tensor& tensor);

 private:
  std::byte* Allocate(int64_t bytes);
  void Fill(std::byte* to, absl::Span<const std::byte> bytes);

  const std::unique_ptr<kernels::Device> device_;
  std::vector<kernels::Buffer> memory_;
};

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_KERNELS_CUDA_GPU_BENCH_H_
