#ifndef STAGECOACH_ENGINE_NN_BOUNDARY_TENSORS_H_
#define STAGECOACH_ENGINE_NN_BOUNDARY_TENSORS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace stagecoach::engine {

// The tensors that pass a place where a model can be cut: an ordered bundle in one block of memory
// for each micro-batch. The first is the activation that one layer hands to the next; any that skip
// past that layer follow it. Each starts at a multiple of partition::kTensorAlignment; the last is
// not rounded up. Schedules, transports and the executor see only the block and its bytes, so the
// number of tensors concerns only the two neighboring stages. Regular value type.
class BoundaryTensors {
 public:
  BoundaryTensors() = default;  // no tensors
  // `samples`: the shape of one sample of each tensor; each tensor has `rows` samples of that type.
  BoundaryTensors(std::vector<kernels::Shape> samples, int64_t rows, kernels::DType type);

  int size() const { return static_cast<int>(samples_.size()); }
  const kernels::Shape& sample(int i) const { return samples_[static_cast<size_t>(i)]; }
  // Returns the offset of tensor i from the start of the bundle, in bytes.
  int64_t offset(int i) const { return offsets_[static_cast<size_t>(i)]; }
  int64_t bytes() const { return bytes_; }
  // Returns tensor i of the bundle at `block`, with the leading dimension `rows`; empty if the
  // block is null.
  kernels::Tensor At(int i, std::byte* block) const;

 private:
  std::vector<kernels::Shape> samples_;
  std::vector<int64_t> offsets_;
  int64_t rows_ = 0;
  kernels::DType type_ = kernels::DType::kFloat32;
  int64_t bytes_ = 0;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_BOUNDARY_TENSORS_H_
