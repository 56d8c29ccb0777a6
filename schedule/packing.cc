#include "schedule/packing.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

namespace stagecoach::schedule {
namespace {

struct Lifetime {
  int32_t first;
  int32_t last;
};

// Blocks of one size that follow each other in the same place. A schedule repeats itself, so there
// are far fewer rows than blocks; scanning rows is what makes packing fast.
struct Row {
  int64_t offset;
  int64_t end;
  std::vector<Lifetime> tenants;  // ascending, without overlap
  size_t next = 0;                // of the tenants, the first that the next block may meet

  // Asked in ascending order of `life.first`, from `next` = 0.
  bool IsFreeDuring(const Lifetime& life) {
    while (next < tenants.size() && tenants[next].last < life.first) ++next;
    return next == tenants.size() || tenants[next].first > life.last;
  }
};

// Puts `block` at the lowest free offset. `rows` is ordered by offset, then end.
void Place(std::vector<Row>& rows, Block& block) {
  const Lifetime life{block.first, block.last};
  int64_t offset = 0;
  for (Row& row : rows) {
    if (row.offset >= offset + block.bytes) break;
    if (row.end > offset && !row.IsFreeDuring(life)) offset = row.end;
  }
  block.offset = offset;
  const int64_t end = offset + block.bytes;
  auto row = std::lower_bound(rows.begin(), rows.end(), offset,
                              [](const Row& r, int64_t value) { return r.offset < value; });
  while (row != rows.end() && row->offset == offset && row->end < end) ++row;
  if (row == rows.end() || row->offset != offset || row->end != end) {
    row = rows.insert(row, Row{offset, end, {}});
  }
  row->tenants.push_back(life);
}

}  // namespace

int64_t PackBlocks(absl::Span<Block> blocks) {
  std::vector<size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (blocks[a].bytes != blocks[b].bytes) return blocks[a].bytes > blocks[b].bytes;
    return blocks[a].first < blocks[b].first;
  });
  std::vector<Row> rows;
  int64_t extent = 0;
  int64_t bytes = 0;
  for (const size_t i : order) {
    Block& block = blocks[i];
    if (block.bytes != bytes) {
      // Only blocks of one size, and so the tenants of one row, come in the order of their `first`.
      for (Row& row : rows) row.next = 0;
      bytes = block.bytes;
    }
    Place(rows, block);
    extent = std::max(extent, block.offset + block.bytes);
  }
  return extent;
}

}  // namespace stagecoach::schedule
