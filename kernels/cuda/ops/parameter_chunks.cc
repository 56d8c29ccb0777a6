#include "kernels/cuda/ops/parameter_chunks.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {
namespace {

constexpr uintptr_t kVectorElements = 4;

void CheckTensor(const Tensor& tensor, DType type, int64_t elements) {
  if (tensor.empty()) return;
  STAGECOACH_CHECK(tensor.dtype == type && tensor.elements() == elements,
                   absl::StrCat("a tensor of the shape ", tensor.shape.ToString(),
                                " belongs to a parameter of ", elements, " elements"));
}

// Returns whether vectors of four elements may be read and written at the tensor's start, and so at
// the start of each of its chunks.
bool IsAligned(const Tensor& tensor) {
  const auto vector_bytes = kVectorElements * static_cast<uintptr_t>(SizeOf(tensor.dtype));
  return reinterpret_cast<uintptr_t>(tensor.data) % vector_bytes == 0;
}

// Returns the tensor's elements from `begin` on; null if there is no tensor.
template <typename T>
T* From(const Tensor& tensor, int64_t begin) {
  return tensor.empty() ? nullptr : static_cast<T*>(tensor.data) + begin;
}

}  // namespace

ParameterChunks CutIntoChunks(absl::Span<const ParameterTensors> parameters) {
  static_assert(kChunkElements % kVectorElements == 0, "chunks must start at vectors");
  ParameterChunks cut;
  cut.first_chunk.reserve(parameters.size() + 1);
  for (const ParameterTensors& parameter : parameters) {
    const int64_t elements = parameter.value.elements();
    bool aligned = true;
    for (const Tensor& tensor : {parameter.value, parameter.gradient, parameter.states[0],
                                 parameter.states[1], parameter.ema}) {
      CheckTensor(tensor, DType::kFloat32, elements);
      aligned = aligned && IsAligned(tensor);
    }
    CheckTensor(parameter.working, DType::kBfloat16, elements);
    aligned = aligned && IsAligned(parameter.working);
    cut.first_chunk.push_back(static_cast<int32_t>(cut.chunks.size()));
    const MovingAverage average = parameter.average.value_or(MovingAverage());
    for (int64_t begin = 0; begin < elements; begin += kChunkElements) {
      cut.chunks.push_back(
          {.value = From<float>(parameter.value, begin),
           .working = From<uint16_t>(parameter.working, begin),
           .gradient = From<float>(parameter.gradient, begin),
           .states = {From<float>(parameter.states[0], begin),
                      From<float>(parameter.states[1], begin)},
           .ema = From<float>(parameter.ema, begin),
           .elements = static_cast<int32_t>(std::min<int64_t>(elements - begin, kChunkElements)),
           .aligned = aligned,
           .decays = parameter.decays,
           .is_average = parameter.average.has_value(),
           .keep = 1.0F - average.momentum,
           .take = average.momentum * average.share,
           .rate_factor = parameter.rate_factor,
           .weight_decay = parameter.weight_decay.value_or(-1.0F)});
    }
  }
  STAGECOACH_CHECK(cut.chunks.size() <= size_t{std::numeric_limits<int32_t>::max()},
                   absl::StrCat(cut.chunks.size(), " chunks of parameters"));
  cut.first_chunk.push_back(static_cast<int32_t>(cut.chunks.size()));
  return cut;
}

}  // namespace stagecoach::kernels
