#include "engine/nn/block_order.h"

#include <algorithm>

namespace stagecoach::engine {

absl::Status CheckTensorBlocks(int blocks, TensorPart part) {
  if (blocks < 1 || !std::has_single_bit(static_cast<unsigned>(blocks)) ||
      blocks > kMostTensorBlocks) {
    return absl::InvalidArgumentError(
        absl::StrCat(blocks, " blocks: expected a power of two, at most ", kMostTensorBlocks));
  }
  if (blocks % part.parts == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(part.parts, " devices cannot share ", blocks, " blocks equally"));
}

using kernels::Shape;

Shape BlockOrder::BlockOf(const Shape& whole) const {
  if (!is_cut()) return whole;
  std::vector<int64_t> dims;
  for (int i = 0; i < whole.rank(); ++i) dims.push_back(whole.dim(i) / (i == axis ? blocks : 1));
  return Shape(dims);
}

void ForEachRun(const Shape& whole, const BlockOrder& order, int64_t first, int64_t count,
                absl::FunctionRef<void(const ElementRun&)> take) {
  if (count <= 0) return;
  if (!order.is_cut()) return take({.whole = first, .stored = first, .count = count});
  int64_t outer = 1, inner = 1;
  for (int i = 0; i < order.axis; ++i) outer *= whole.dim(i);
  for (int i = order.axis + 1; i < whole.rank(); ++i) inner *= whole.dim(i);
  const int64_t row = whole.dim(order.axis) * inner;  // elements of the whole, per index before
  ElementRun run;                                     // that may grow
  int64_t stored = 0;
  for (int block = 0; block < order.blocks; ++block) {
    const int64_t block_elements = outer * row / order.blocks;
    if (stored + block_elements <= first) {
      stored += block_elements;
      continue;
    }
    for (int64_t i = 0; i < outer; ++i) {
      int64_t begin = i * row;  // of the extent, in the whole
      for (const int64_t extent : order.extents) {
        const int64_t share = extent / order.blocks * inner;
        const int64_t from = std::max(first, stored);
        const int64_t to = std::min(first + count, stored + share);
        if (from < to) {
          const ElementRun next = {
              .whole = begin + block * share + (from - stored), .stored = from, .count = to - from};
          if (run.count > 0 && run.whole + run.count == next.whole) {
            run.count += next.count;
          } else {
            if (run.count > 0) take(run);
            run = next;
          }
        }
        stored += share;
        begin += extent * inner;
        if (stored >= first + count) return take(run);
      }
    }
  }
}

}  // namespace stagecoach::engine
