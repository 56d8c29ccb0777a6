#include "engine/nn/boundary_tensors.h"

#include <utility>

#include "partition/cost/layer_cost.h"

namespace stagecoach::engine {

BoundaryTensors::BoundaryTensors(std::vector<kernels::Shape> samples, int64_t rows,
                                 kernels::DType type)
    : samples_(std::move(samples)), rows_(rows), type_(type) {
  for (const kernels::Shape& sample : samples_) {
    offsets_.push_back(partition::AlignTensor(bytes_));
    bytes_ = offsets_.back() + rows_ * sample.elements() * SizeOf(type_);
  }
}

kernels::Tensor BoundaryTensors::At(int i, std::byte* block) const {
  if (block == nullptr) return {};
  return {block + offset(i), type_, sample(i).Batched(rows_)};
}

}  // namespace stagecoach::engine
