#include "schedule/memory/packing.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace stagecoach::schedule {
namespace {

struct Lifetime {
  int32_t first;
  int32_t last;
};

// The set of free numbers from 0 on. All are free at first.
class FreeNumbers {
 public:
  bool Has(size_t number) const {
    const size_t word = number / kBits;
    return word >= taken_.size() || (taken_[word] >> (number % kBits) & 1) == 0;
  }
  void Take(size_t number) {
    if (number / kBits >= taken_.size()) taken_.resize(number / kBits + 1, 0);
    taken_[number / kBits] |= uint64_t{1} << (number % kBits);
  }
  void Release(size_t number) { taken_[number / kBits] &= ~(uint64_t{1} << (number % kBits)); }

  // Returns the lowest free number that is at least `from`.
  size_t Next(size_t from) const {
    size_t word = from / kBits;
    if (word >= taken_.size()) return from;
    const uint64_t below = (uint64_t{1} << (from % kBits)) - 1;
    uint64_t taken = taken_[word] | below;
    while (taken == ~uint64_t{0}) {
      if (++word == taken_.size()) return word * kBits;
      taken = taken_[word];
    }
    return word * kBits + static_cast<size_t>(std::countr_one(taken));
  }

 private:
  static constexpr size_t kBits = 64;
  std::vector<uint64_t> taken_;  // one bit per number
};

// Places the blocks one size after the other, largest first. The space that larger blocks have
// taken, [0, floor), is divided into cells, within which no block begins or ends. Above it, blocks
// of the current size lie in slots of their size, except one that lies across the floor. A schedule
// repeats itself, so blocks are many and cells are few; sets of free cells and slots let a block
// find its place without visiting the taken ones.
class Packer {
 public:
  explicit Packer(absl::Span<Block> blocks);

  // Returns the extent.
  int64_t Run();

 private:
  struct Cell {
    size_t next;  // the first of its tenants that the next block may meet
    size_t end;
  };
  // A place that blocks of one size have taken in turn.
  struct Row {
    int64_t offset;
    int64_t end;
    size_t first_cell = 0;
    size_t end_cell = 0;
  };
  // A live block of the current size that lies in no slot.
  struct Other {
    int64_t offset;
    int32_t last;
  };

  void BeginSize(int64_t bytes);
  void DivideIntoCells();
  void FindTightMoments();
  void PlaceAll(absl::Span<const uint32_t> group);
  int32_t RowAt(int64_t offset);
  // Frees what blocks have left before `moment`.
  void AdvanceTo(int32_t moment);

  int64_t LowestFree(const Lifetime& life);
  bool IsFree(size_t cell, const Lifetime& life);
  // Return the lowest offset from `offset` on without another block, without a block in a slot, or
  // without either.
  int64_t PastOthers(int64_t offset) const;
  std::vector<Other>::const_iterator FirstOtherPast(int64_t offset) const;
  int64_t PastSlots(int64_t offset) const;
  int64_t PastAll(int64_t offset) const;

  // Numbers of cells, followed by those of slots, by the moment when their block ends.
  void ReleaseAfter(int32_t moment, size_t number) {
    if (number >= same_moment_.size()) same_moment_.resize(number + 1);
    same_moment_[number] =
        std::exchange(released_after_[static_cast<size_t>(moment)], static_cast<int32_t>(number));
  }

  const absl::Span<Block> blocks_;
  std::vector<uint32_t> by_first_;
  size_t moments_ = 0;
  std::vector<Row> rows_;
  std::vector<int32_t> row_of_;  // index: block

  // State of the current size.
  int64_t bytes_ = 0;
  int64_t floor_ = 0;
  int64_t extent_ = 0;
  std::vector<int64_t> cuts_;  // where cells begin; the last is the floor
  size_t num_cut_rows_ = 0;    // number of rows that the cuts cover
  std::vector<Cell> cells_;
  std::vector<Lifetime> tenants_;    // per cell, ascending, without overlap
  std::vector<int32_t> next_tight_;  // index: moment; the next one at which no room is left below
  FreeNumbers free_cells_;           // except those not known to be taken
  FreeNumbers free_slots_;
  std::vector<Other> others_;  // ascending offset
  int32_t first_other_ends_ = 0;
  absl::flat_hash_map<int64_t, int32_t> row_at_;
  int32_t now_ = 0;
  std::vector<int32_t> released_after_;  // index: moment; a number, or -1
  std::vector<int32_t> same_moment_;     // index: number; the next one
};

Packer::Packer(absl::Span<Block> blocks)
    : blocks_(blocks), by_first_(blocks.size()), row_of_(blocks.size(), -1) {
  std::iota(by_first_.begin(), by_first_.end(), 0U);
  const auto is_earlier = [&](uint32_t a, uint32_t b) {
    return blocks_[a].first < blocks_[b].first;
  };
  if (!std::is_sorted(by_first_.begin(), by_first_.end(), is_earlier)) {
    std::stable_sort(by_first_.begin(), by_first_.end(), is_earlier);
  }
  for (const Block& block : blocks) {
    moments_ = std::max(moments_, static_cast<size_t>(block.last) + 1);
  }
}

int64_t Packer::Run() {
  std::vector<int64_t> sizes;  // descending
  const auto place_of = [&](int64_t bytes) {
    return std::lower_bound(sizes.begin(), sizes.end(), bytes, std::greater<>());
  };
  for (const Block& block : blocks_) {
    const auto place = place_of(block.bytes);
    if (place == sizes.end() || *place != block.bytes) sizes.insert(place, block.bytes);
  }
  std::vector<std::vector<uint32_t>> groups(sizes.size());
  for (const uint32_t i : by_first_) {
    groups[static_cast<size_t>(place_of(blocks_[i].bytes) - sizes.begin())].push_back(i);
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    BeginSize(sizes[i]);
    PlaceAll(groups[i]);
  }
  return extent_;
}

void Packer::BeginSize(int64_t bytes) {
  bytes_ = bytes;
  floor_ = extent_;
  now_ = 0;
  free_cells_ = {};
  free_slots_ = {};
  others_.clear();
  first_other_ends_ = std::numeric_limits<int32_t>::max();
  row_at_.clear();
  released_after_.assign(moments_, -1);
  if (floor_ == 0) return;
  DivideIntoCells();
  FindTightMoments();
}

void Packer::DivideIntoCells() {
  // The rows of the last size, most of them in ascending slots, join those of larger sizes.
  const auto num_old = static_cast<std::ptrdiff_t>(cuts_.size());
  for (; num_cut_rows_ < rows_.size(); ++num_cut_rows_) {
    const Row& row = rows_[num_cut_rows_];
    cuts_.insert(cuts_.end(), {row.offset, row.end});
  }
  if (!std::is_sorted(cuts_.begin() + num_old, cuts_.end())) {
    std::sort(cuts_.begin() + num_old, cuts_.end());
  }
  std::inplace_merge(cuts_.begin(), cuts_.begin() + num_old, cuts_.end());
  cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
  // Most rows begin where the previous one ends.
  size_t cut = 0;
  for (Row& row : rows_) {
    if (cuts_[cut] != row.offset) {
      cut = static_cast<size_t>(std::lower_bound(cuts_.begin(), cuts_.end(), row.offset) -
                                cuts_.begin());
    }
    row.first_cell = cut;
    while (cuts_[cut] != row.end) ++cut;
    row.end_cell = cut;
  }
  cells_.assign(cuts_.size() - 1, Cell{0, 0});
  // Here `end` first counts tenants, and then holds where the next one goes.
  const auto for_each_tenant = [&](const auto& function) {
    for (const uint32_t i : by_first_) {
      if (row_of_[i] < 0) continue;
      const Row& row = rows_[static_cast<size_t>(row_of_[i])];
      for (size_t cell = row.first_cell; cell < row.end_cell; ++cell) function(cells_[cell], i);
    }
  };
  for_each_tenant([](Cell& cell, uint32_t) { ++cell.end; });
  size_t begin = 0;
  for (Cell& cell : cells_) {
    cell.next = begin;
    begin += std::exchange(cell.end, begin);
  }
  tenants_.resize(begin);
  for_each_tenant([&](Cell& cell, uint32_t i) {
    tenants_[cell.end++] = {blocks_[i].first, blocks_[i].last};
  });
}

// Finds the moments at which so much of [0, floor) is taken that no block of the current size can
// fit.
void Packer::FindTightMoments() {
  std::vector<int64_t> change(moments_ + 1, 0);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (row_of_[i] < 0) continue;
    change[static_cast<size_t>(blocks_[i].first)] += blocks_[i].bytes;
    change[static_cast<size_t>(blocks_[i].last) + 1] -= blocks_[i].bytes;
  }
  next_tight_.resize(moments_);
  std::partial_sum(change.begin(), change.end(), change.begin());
  int32_t next = std::numeric_limits<int32_t>::max();
  for (size_t moment = moments_; moment-- > 0;) {
    if (floor_ - change[moment] < bytes_) next = static_cast<int32_t>(moment);
    next_tight_[moment] = next;
  }
}

void Packer::PlaceAll(absl::Span<const uint32_t> group) {
  const size_t num_cells = floor_ == 0 ? 0 : cells_.size();
  for (const uint32_t i : group) {
    Block& block = blocks_[i];
    AdvanceTo(block.first);
    block.offset = LowestFree({block.first, block.last});
    extent_ = std::max(extent_, block.offset + bytes_);
    row_of_[i] = RowAt(block.offset);
    const int64_t above = block.offset - floor_;
    if (above >= 0 && above % bytes_ == 0) {
      const auto slot = static_cast<size_t>(above / bytes_);
      free_slots_.Take(slot);
      ReleaseAfter(block.last, num_cells + slot);
      continue;
    }
    others_.insert(FirstOtherPast(block.offset), {block.offset, block.last});
    first_other_ends_ = std::min(first_other_ends_, block.last);
  }
}

int32_t Packer::RowAt(int64_t offset) {
  const auto [entry, is_new] = row_at_.try_emplace(offset, static_cast<int32_t>(rows_.size()));
  if (is_new) rows_.push_back({.offset = offset, .end = offset + bytes_});
  return entry->second;
}

void Packer::AdvanceTo(int32_t moment) {
  const size_t num_cells = floor_ == 0 ? 0 : cells_.size();
  for (; now_ < moment; ++now_) {
    for (int32_t i = released_after_[static_cast<size_t>(now_)]; i >= 0;) {
      const auto number = static_cast<size_t>(i);
      i = same_moment_[number];
      if (number < num_cells) {
        free_cells_.Release(number);
      } else {
        free_slots_.Release(number - num_cells);
      }
    }
  }
  if (first_other_ends_ >= moment) return;
  first_other_ends_ = std::numeric_limits<int32_t>::max();
  std::erase_if(others_, [&](const Other& other) {
    if (other.last < moment) return true;
    first_other_ends_ = std::min(first_other_ends_, other.last);
    return false;
  });
}

int64_t Packer::LowestFree(const Lifetime& life) {
  if (floor_ == 0) return PastSlots(0);
  const auto is_free = [&](size_t cell) { return free_cells_.Has(cell) && IsFree(cell, life); };
  size_t cell = cells_.size();
  if (next_tight_[static_cast<size_t>(life.first)] <= life.last) {
    while (cell > 0 && is_free(cell - 1)) --cell;
    return PastAll(cuts_[cell]);
  }
  for (cell = free_cells_.Next(0); cell < cells_.size(); cell = free_cells_.Next(cell + 1)) {
    if (!IsFree(cell, life)) continue;
    const int64_t offset = PastOthers(cuts_[cell]);
    while (true) {
      ++cell;
      if (offset + bytes_ <= cuts_[cell]) return offset;
      if (cell == cells_.size()) return PastAll(offset);
      if (!is_free(cell)) break;
    }
  }
  return PastAll(floor_);
}

// Returns true if the cell is free during `life`. Calls come in ascending order of `life.first`.
// Pre-condition: the cell is in free_cells_.
bool Packer::IsFree(size_t cell, const Lifetime& life) {
  auto& [next, end] = cells_[cell];
  while (next < end && tenants_[next].last < life.first) ++next;
  if (next == end || tenants_[next].first > life.last) return true;
  if (tenants_[next].first <= life.first) {
    free_cells_.Take(cell);
    ReleaseAfter(tenants_[next].last, cell);
  }
  return false;
}

int64_t Packer::PastOthers(int64_t offset) const {
  for (auto other = FirstOtherPast(offset - bytes_);
       other != others_.end() && other->offset < offset + bytes_; ++other) {
    offset = other->offset + bytes_;
  }
  return offset;
}

std::vector<Packer::Other>::const_iterator Packer::FirstOtherPast(int64_t offset) const {
  return std::partition_point(others_.begin(), others_.end(),
                              [&](const Other& other) { return other.offset <= offset; });
}

int64_t Packer::PastSlots(int64_t offset) const {
  if (offset + bytes_ <= floor_) return offset;
  // The block may meet two slots; slot 0 is the first.
  const int64_t above = offset - floor_;
  const int64_t lower = above < 0 ? -1 : above / bytes_;
  const bool is_aligned = above >= 0 && above % bytes_ == 0;
  const auto is_taken = [&](int64_t slot) {
    return slot >= 0 && !free_slots_.Has(static_cast<size_t>(slot));
  };
  if (!is_aligned && !is_taken(lower) && !is_taken(lower + 1)) return offset;
  const int64_t from = is_aligned ? lower : is_taken(lower + 1) ? lower + 2 : lower + 1;
  return floor_ + static_cast<int64_t>(free_slots_.Next(static_cast<size_t>(from))) * bytes_;
}

int64_t Packer::PastAll(int64_t offset) const {
  while (true) {
    const int64_t past = PastSlots(PastOthers(offset));
    if (past == offset) return offset;
    offset = past;
  }
}

}  // namespace

int64_t PackBlocks(absl::Span<Block> blocks) { return Packer(blocks).Run(); }

}  // namespace stagecoach::schedule
