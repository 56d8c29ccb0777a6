#include "engine/model/bundle.h"

#include <utility>

#include "partition/layer_cost.h"

namespace stagecoach::engine {

Bundle::Bundle(std::vector<kernels::Shape> samples, int64_t rows, kernels::DType type)
    : samples_(std::move(samples)), rows_(rows), type_(type) {
  for (const kernels::Shape& sample : samples_) {
    offsets_.push_back(partition::AlignTensor(bytes_));
    bytes_ = offsets_.back() + rows_ * sample.elements() * SizeOf(type_);
  }
}

kernels::Tensor Bundle::At(int i, std::byte* block) const {
  if (block == nullptr) return {};
  return {block + offset(i), type_, sample(i).Batched(rows_)};
}

}  // namespace stagecoach::engine
