#include "tests/testing/device_fixture.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "kernels/cpu/cpu_device.h"

namespace stagecoach::testing {
namespace {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;

constexpr int64_t kGuardBytes = 256;
constexpr std::byte kFill{0xFF};

}  // namespace

TestDevice::TestDevice(int threads, kernels::Precision precision) {
  auto device = kernels::CreateCpuDevice({.threads = threads, .precision = precision});
  STAGECOACH_CHECK_OK(device);
  device_ = *std::move(device);
}

TestDevice::~TestDevice() {
  for (const Guarded& guarded : memory_) {
    const std::byte* const guard = guarded.buffer.data() + guarded.bytes;
    EXPECT_TRUE(std::all_of(guard, guard + kGuardBytes, [](std::byte b) { return b == kFill; }))
        << "an operation wrote beyond the end of a tensor of " << guarded.bytes << " bytes";
  }
}

Tensor TestDevice::Operand(const Shape& shape, absl::Span<const float> values, DType dtype) {
  const Tensor tensor = Result(shape, dtype);
  STAGECOACH_CHECK(tensor.elements() == static_cast<int64_t>(values.size()),
                   absl::StrCat(values.size(), " values for the shape ", shape.ToString()));
  if (dtype == DType::kBfloat16) {
    std::transform(values.begin(), values.end(), tensor.bf16(), kernels::ToBfloat16);
  } else {
    std::copy(values.begin(), values.end(), tensor.f32());
  }
  return tensor;
}

Tensor TestDevice::Labels(absl::Span<const int32_t> labels) {
  const Tensor tensor = Result(Shape{static_cast<int64_t>(labels.size())}, DType::kInt32);
  std::copy(labels.begin(), labels.end(), tensor.i32());
  return tensor;
}

Tensor TestDevice::Result(const Shape& shape, DType dtype) {
  Tensor tensor{nullptr, dtype, shape};
  tensor.data = Workspace(tensor.bytes());
  return tensor;
}

std::byte* TestDevice::Workspace(int64_t bytes) {
  auto buffer = device_->Allocate(bytes + kGuardBytes);
  STAGECOACH_CHECK_OK(buffer);
  std::memset(buffer->data(), std::to_integer<int>(kFill), static_cast<size_t>(buffer->bytes()));
  memory_.push_back({*std::move(buffer), bytes});
  return memory_.back().buffer.data();
}

absl::Status TestDevice::Run(absl::FunctionRef<absl::Status(kernels::Stream&)> work) {
  absl::Status status;
  device_->stream().Run([&] { status = work(device_->stream()); });
  return status;
}

std::vector<double> TestDevice::Values(const Tensor& tensor) {
  const int64_t n = tensor.elements();
  switch (tensor.dtype) {
    case DType::kFloat32:
      return std::vector<double>(tensor.f32(), tensor.f32() + n);
    case DType::kFloat64:
      return std::vector<double>(tensor.f64(), tensor.f64() + n);
    case DType::kBfloat16: {
      std::vector<double> values;
      for (int64_t i = 0; i < n; ++i) values.push_back(kernels::FromBfloat16(tensor.bf16()[i]));
      return values;
    }
    case DType::kInt32:
      return std::vector<double>(tensor.i32(), tensor.i32() + n);
    case DType::kUint8:
    case DType::kFloat16:
    case DType::kInt8:
      break;
  }
  base::PrintAndAbort(__FILE__, __LINE__, "Values", "not a tensor of numbers");
}

absl::Span<const std::byte> BytesOf(const Tensor& tensor) {
  return absl::MakeConstSpan(static_cast<const std::byte*>(tensor.data),
                             static_cast<size_t>(tensor.bytes()));
}

}  // namespace stagecoach::testing
