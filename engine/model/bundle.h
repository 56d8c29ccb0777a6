#ifndef STAGECOACH_ENGINE_MODEL_BUNDLE_H_
#define STAGECOACH_ENGINE_MODEL_BUNDLE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/tensor.h"

namespace stagecoach::engine {

// What passes at a place where a model can be cut: tensors in order, one block of memory for a
// micro-batch. The first is the activation that one layer hands to the next; any that skip past
// that layer follow it. Each starts at a multiple of partition::kTensorAlignment; the last is not
// rounded up. Schedules, transports and the executor only see the block and its bytes, so how many
// tensors there are is between two neighboring stages. Regular value type.
class Bundle {
 public:
  Bundle() = default;  // no tensors
  // `samples`: the shape of one sample of each tensor; all have `rows` samples of that type.
  Bundle(std::vector<kernels::Shape> samples, int64_t rows, kernels::DType type);

  int size() const { return static_cast<int>(samples_.size()); }
  const kernels::Shape& sample(int i) const { return samples_[static_cast<size_t>(i)]; }
  // Of tensor i, from where the bundle lies.
  int64_t offset(int i) const { return offsets_[static_cast<size_t>(i)]; }
  int64_t bytes() const { return bytes_; }
  // Tensor i where the bundle lies at `block`, with the leading dimension `rows`; empty if the
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

#endif  // STAGECOACH_ENGINE_MODEL_BUNDLE_H_
