#ifndef STAGECOACH_ENGINE_NN_BLOCK_ORDER_H_
#define STAGECOACH_ENGINE_NN_BLOCK_ORDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// One of the devices that perform a stage together (TensorBlocks in
// engine/nn/layers/composite/tensor_blocks.h). Regular value type.
struct TensorPart {
  int parts = 1;  // a power of two
  int index = 0;

  friend bool operator==(const TensorPart&, const TensorPart&) = default;
};

inline constexpr int kMostTensorBlocks = 256;
// Returns InvalidArgument unless that number of blocks is a power of two, not above the limit, and
// can be divided among the parts.
absl::Status CheckTensorBlocks(int blocks, TensorPart part);

// Elements of a parameter in memory: those from `stored` on, in the order in which the parameter is
// stored, are those from `whole` on in the row-major order of its shape.
struct ElementRun {
  int64_t whole = 0, stored = 0, count = 0;

  friend bool operator==(const ElementRun&, const ElementRun&) = default;
};

// How a parameter is stored whose layer is cut into blocks: block after block, each of them dense.
// Everything that acts on each element by itself (optimizers, sums over replicas) need not know.
// Values are in the order of the shape wherever they leave memory: initial values, checkpoints,
// models of others. Regular value type.
struct BlockOrder {
  static constexpr int kOnlyFirst = -1;

  int blocks = 1;
  // The axis of the shape that is cut. kOnlyFirst: the first block alone has the parameter, which
  // is not cut.
  int axis = 0;
  // Consecutive extents along the axis, such as those of queries, keys and values, of each of which
  // a block has its share; they add up to the axis, and each is a multiple of the blocks.
  std::vector<int64_t> extents;

  bool is_cut() const { return axis != kOnlyFirst; }
  // Returns the shape of one block of a parameter of that shape.
  kernels::Shape BlockOf(const kernels::Shape& whole) const;

  friend bool operator==(const BlockOrder&, const BlockOrder&) = default;
};

// Calls `take` for the longest runs that make up `count` stored elements from `first` on, in the
// order of storage.
void ForEachRun(const kernels::Shape& whole, const BlockOrder& order, int64_t first, int64_t count,
                absl::FunctionRef<void(const ElementRun&)> take);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_BLOCK_ORDER_H_
