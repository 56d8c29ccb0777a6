#include "tests/kernels/cuda/gpu_bench.h"

#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "kernels/bfloat16.h"
#include "kernels/cuda_backend.h"

namespace stagecoach::testing {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;

namespace {

template <typename T>
T Take(absl::StatusOr<T> result) {
  STAGECOACH_CHECK_OK(result);
  return *std::move(result);
}

template <typename T>
absl::Span<const std::byte> AsBytes(const std::vector<T>& values) {
  return {reinterpret_cast<const std::byte*>(values.data()), values.size() * sizeof(T)};
}

absl::StatusOr<std::unique_ptr<kernels::Device>> CreateDevice(kernels::Precision precision) {
  ASSIGN_OR_RETURN(kernels::CudaBackend* const backend, kernels::CudaBackend::Load());
  return backend->CreateDevice({.precision = precision});
}

}  // namespace

void GpuTest::SetUp() {
  const absl::Status status = CreateDevice(kernels::Precision::kFloat32).status();
  if (!absl::IsUnavailable(status)) return;
  const char* const required = std::getenv("STAGECOACH_REQUIRE_GPU");
  if (required != nullptr && absl::string_view(required) == "1") FAIL() << status;
  GTEST_SKIP() << status.message();
}

GpuBench::GpuBench(kernels::Precision precision) : device_(Take(CreateDevice(precision))) {}

std::byte* GpuBench::Allocate(int64_t bytes) {
  memory_.push_back(Take(device_->Allocate(bytes)));
  return memory_.back().data();
}

void GpuBench::Fill(std::byte* to, absl::Span<const std::byte> bytes) {
  const auto count = static_cast<int64_t>(bytes.size());
  const kernels::HostBuffer staging = Take(device_->AllocateHost(count));
  std::memcpy(staging.data(), bytes.data(), bytes.size());
  STAGECOACH_CHECK_OK(
      Run([&](kernels::Stream& stream) { return stream.CopyFromHost(to, staging.data(), count); }));
}

Tensor GpuBench::Operand(const Shape& shape, absl::Span<const float> values, DType dtype) {
  const Tensor tensor{Allocate(shape.elements() * SizeOf(dtype)), dtype, shape};
  if (dtype == DType::kBfloat16) {
    std::vector<uint16_t> rounded;
    for (const float value : values) rounded.push_back(kernels::ToBfloat16(value));
    Fill(static_cast<std::byte*>(tensor.data), AsBytes(rounded));
  } else {
    Fill(static_cast<std::byte*>(tensor.data),
         AsBytes(std::vector<float>(values.begin(), values.end())));
  }
  return tensor;
}

Tensor GpuBench::Result(const Shape& shape, DType dtype) {
  return {Workspace(shape.elements() * SizeOf(dtype)), dtype, shape};
}

std::byte* GpuBench::Workspace(int64_t bytes) {
  std::byte* const memory = Allocate(bytes);
  Fill(memory, std::vector<std::byte>(static_cast<size_t>(bytes), std::byte{0xFF}));
  return memory;
}

absl::Status GpuBench::Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work) {
  kernels::Stream& stream = device_->stream();
  absl::Status status;
  stream.Run([&] {
    status = work(stream);
    status.Update(
        stream.Finish(base::Deadline::After(absl::Seconds(60)), [] { return absl::OkStatus(); }));
  });
  return status;
}

std::vector<std::byte> GpuBench::Bytes(const Tensor& tensor) {
  const kernels::HostBuffer staging = Take(device_->AllocateHost(tensor.bytes()));
  STAGECOACH_CHECK_OK(Run([&](kernels::Stream& stream) {
    return stream.CopyToHost(staging.data(), tensor.data, tensor.bytes());
  }));
  return {staging.data(), staging.data() + tensor.bytes()};
}

std::vector<double> GpuBench::Values(const Tensor& tensor) {
  const std::vector<std::byte> bytes = Bytes(tensor);
  std::vector<double> values(static_cast<size_t>(tensor.elements()));
  for (size_t i = 0; i < values.size(); ++i) {
    if (tensor.dtype == DType::kBfloat16) {
      uint16_t value = 0;
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      values[i] = kernels::FromBfloat16(value);
    } else {
      float value = 0;
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      values[i] = value;
    }
  }
  return values;
}

}  // namespace stagecoach::testing
