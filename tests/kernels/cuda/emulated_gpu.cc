#include "tests/kernels/cuda/emulated_gpu.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/bfloat16.h"

namespace stagecoach::testing {
namespace {

using kernels::DType;
using kernels::Shape;
using kernels::Tensor;

void Check(cudaError_t error, const char* call) {
  STAGECOACH_CHECK(error == cudaSuccess, absl::StrCat(call, ": ", cudaGetErrorName(error)));
}

}  // namespace

EmulatedGpu::EmulatedGpu(cuda::ThreadOrder order) {
  cuda::Reset({.gpus = 1, .thread_order = order, .delay = 0.0});
  Check(cudaSetDevice(0), "cudaSetDevice");
  Check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, 0),
        "cudaStreamCreateWithPriority");
}

EmulatedGpu::~EmulatedGpu() {
  Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  for (void* memory : memory_) Check(cudaFree(memory), "cudaFree");
  Check(cudaStreamDestroy(stream_), "cudaStreamDestroy");
  EXPECT_EQ(cuda::live().total(), 0);
}

Tensor EmulatedGpu::Operand(DType type, absl::Span<const float> values, int64_t offset) {
  const Tensor tensor = Result(type, static_cast<int64_t>(values.size()), offset);
  if (type == DType::kFloat32) {
    Copy(tensor.data, values.data(), tensor.bytes(), cudaMemcpyHostToDevice);
    return tensor;
  }
  std::vector<uint16_t> rounded;
  rounded.reserve(values.size());
  for (float value : values) rounded.push_back(kernels::ToBfloat16(value));
  Copy(tensor.data, rounded.data(), tensor.bytes(), cudaMemcpyHostToDevice);
  return tensor;
}

Tensor EmulatedGpu::Doubles(absl::Span<const double> values) {
  return {Upload(values), DType::kFloat64, Shape{static_cast<int64_t>(values.size())}};
}

Tensor EmulatedGpu::Integers(absl::Span<const int32_t> values) {
  return {Upload(values), DType::kInt32, Shape{static_cast<int64_t>(values.size())}};
}

Tensor EmulatedGpu::Result(DType type, int64_t elements, int64_t offset) {
  auto* const memory = static_cast<std::byte*>(Allocate((offset + elements) * SizeOf(type)));
  return {memory + offset * SizeOf(type), type, Shape{elements}};
}

std::vector<double> EmulatedGpu::Values(const Tensor& tensor) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.bytes()));
  Copy(bytes.data(), tensor.data, tensor.bytes(), cudaMemcpyDeviceToHost);
  const Tensor host{bytes.data(), tensor.dtype, tensor.shape};
  std::vector<double> values;
  values.reserve(static_cast<size_t>(tensor.elements()));
  for (int64_t i = 0; i < tensor.elements(); ++i) {
    switch (tensor.dtype) {
      case DType::kFloat32:
        values.push_back(host.f32()[i]);
        break;
      case DType::kFloat64:
        values.push_back(host.f64()[i]);
        break;
      case DType::kInt32:
        values.push_back(host.i32()[i]);
        break;
      case DType::kBfloat16:
        values.push_back(kernels::FromBfloat16(host.bf16()[i]));
        break;
      case DType::kUint8:
        values.push_back(std::to_integer<int>(bytes[static_cast<size_t>(i)]));
        break;
      case DType::kFloat16:
      case DType::kInt8:
        ADD_FAILURE() << "a type that is in files alone";
        break;
    }
  }
  return values;
}

void* EmulatedGpu::Allocate(int64_t bytes) {
  void* memory = nullptr;
  Check(cudaMalloc(&memory, static_cast<size_t>(bytes)), "cudaMalloc");
  memory_.push_back(memory);
  // Memory of a real GPU is not poisoned by itself, unlike the stand-in's.
  Check(cudaMemsetAsync(memory, 0xFF, static_cast<size_t>(bytes), stream_), "cudaMemsetAsync");
  return memory;
}

void* EmulatedGpu::UploadBytes(const void* bytes, int64_t count) {
  if (count == 0) return nullptr;
  void* const memory = Allocate(count);
  Copy(memory, bytes, count, cudaMemcpyHostToDevice);
  return memory;
}

// The stand-in copies only from and to pinned memory.
void EmulatedGpu::Copy(void* to, const void* from, int64_t bytes, cudaMemcpyKind kind) {
  const auto count = static_cast<size_t>(bytes);
  void* pinned = nullptr;
  Check(cudaHostAlloc(&pinned, count, cudaHostAllocDefault), "cudaHostAlloc");
  const bool to_device = kind == cudaMemcpyHostToDevice;
  if (to_device) std::memcpy(pinned, from, count);
  Check(cudaMemcpyAsync(to_device ? to : pinned, to_device ? pinned : from, count, kind, stream_),
        "cudaMemcpyAsync");
  Check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  if (!to_device) std::memcpy(to, pinned, count);
  Check(cudaFreeHost(pinned), "cudaFreeHost");
}

}  // namespace stagecoach::testing
