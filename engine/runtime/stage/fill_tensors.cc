#include "engine/runtime/stage/fill_tensors.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/mutex.h"
#include "base/parallel.h"
#include "base/status_macros.h"
#include "kernels/bfloat16.h"
#include "kernels/staging.h"

namespace stagecoach::engine {
namespace {

using kernels::Tensor;
using ValuesOf = absl::FunctionRef<absl::Status(int, const Tensor& values)>;

// Fills tensors in the memory of the host, each in place.
absl::Status FillInPlace(absl::Span<const Tensor> tensors, ValuesOf values_of) {
  const int threads = std::min(kernels::StagingOptions().threads, base::AvailableCpus());
  std::atomic<int64_t> failed{std::ssize(tensors)};  // index of the first tensor that failed
  base::Mutex mutex;
  absl::Status error;
  base::ForEachInParallel(std::ssize(tensors), threads, [&](int64_t i) {
    if (i > failed.load()) return;
    const absl::Status status = values_of(static_cast<int>(i), tensors[static_cast<size_t>(i)]);
    if (status.ok()) return;
    base::MutexLock lock(mutex);
    if (i > failed.load()) return;
    failed = i;
    error = status;
  });
  return error;
}

}  // namespace

absl::Status FillTensors(kernels::Device& device, absl::Span<const Tensor> tensors,
                         ValuesOf values_of) {
  if (device.memory_is_host()) return FillInPlace(tensors, values_of);
  int64_t bytes = 0;
  for (const Tensor& tensor : tensors) bytes += tensor.bytes();
  return kernels::Upload(device, bytes, static_cast<int>(tensors.size()),
                         [&](int i, kernels::Uploader& uploader) -> absl::Status {
                           const Tensor& tensor = tensors[static_cast<size_t>(i)];
                           const auto memory = std::make_unique_for_overwrite<std::byte[]>(
                               static_cast<size_t>(tensor.bytes()));
                           Tensor values = tensor;
                           values.data = memory.get();
                           RETURN_IF_ERROR(values_of(i, values));
                           return uploader.Copy(tensor.data, values.data, tensor.bytes());
                         });
}

int64_t FirstHeld(const ModelParameter& parameter, TensorPart part, const Tensor& held) {
  return parameter.pieces() > 1 ? part.index * held.elements() : 0;
}

void FillFromFloats(const ModelParameter& parameter, TensorPart part, const Tensor& tensor,
                    absl::FunctionRef<void(absl::Span<float> values)> fill) {
  const auto elements = static_cast<size_t>(parameter.shape.elements());
  const bool is_cut = parameter.pieces() > 1;
  if (tensor.dtype == kernels::DType::kFloat32 && !is_cut) {
    return fill(absl::MakeSpan(tensor.f32(), elements));
  }
  const auto values = std::make_unique_for_overwrite<float[]>(elements);
  fill(absl::MakeSpan(values.get(), elements));
  if (is_cut) {
    const int64_t first = FirstHeld(parameter, part, tensor);
    return ForEachRun(
        parameter.shape, *parameter.blocks, first, tensor.elements(), [&](const ElementRun& run) {
          const float* const from = values.get() + run.whole;
          const int64_t to = run.stored - first;
          if (tensor.dtype == kernels::DType::kFloat32) {
            std::copy_n(from, run.count, tensor.f32() + to);
          } else {
            std::transform(from, from + run.count, tensor.bf16() + to, kernels::ToBfloat16);
          }
        });
  }
  if (parameter.quantized.has_value()) {
    return Quantize(
        *parameter.quantized, absl::MakeConstSpan(values.get(), elements),
        absl::MakeSpan(static_cast<std::byte*>(tensor.data), static_cast<size_t>(tensor.bytes())));
  }
  std::transform(values.get(), values.get() + elements, tensor.bf16(), kernels::ToBfloat16);
}

}  // namespace stagecoach::engine
