#include "engine/stage/fill_tensors.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>

#include "base/status_macros.h"
#include "kernels/staging.h"

namespace stagecoach::engine {

absl::Status FillTensors(kernels::Device& device, absl::Span<const kernels::Tensor> tensors,
                         absl::FunctionRef<absl::Status(int, absl::Span<float>)> values_of) {
  const auto count = static_cast<int>(tensors.size());
  if (device.memory_is_host()) {
    for (int i = 0; i < count; ++i) {
      const kernels::Tensor& tensor = tensors[static_cast<size_t>(i)];
      RETURN_IF_ERROR(
          values_of(i, absl::MakeSpan(tensor.f32(), static_cast<size_t>(tensor.elements()))));
    }
    return absl::OkStatus();
  }
  int64_t bytes = 0;
  for (const kernels::Tensor& tensor : tensors) bytes += tensor.bytes();
  return kernels::Upload(device, bytes, count,
                         [&](int i, kernels::Uploader& uploader) -> absl::Status {
                           const kernels::Tensor& tensor = tensors[static_cast<size_t>(i)];
                           const auto elements = static_cast<size_t>(tensor.elements());
                           const auto values = std::make_unique_for_overwrite<float[]>(elements);
                           RETURN_IF_ERROR(values_of(i, absl::MakeSpan(values.get(), elements)));
                           return uploader.Copy(tensor.data, values.get(), tensor.bytes());
                         });
}

}  // namespace stagecoach::engine
