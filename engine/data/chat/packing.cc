#include "engine/data/chat/packing.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>

namespace stagecoach::engine {

std::vector<std::vector<int64_t>> PackIntoRows(absl::Span<const int64_t> lengths,
                                               int64_t capacity) {
  std::vector<int64_t> items(lengths.size());
  std::iota(items.begin(), items.end(), int64_t{0});
  const auto length_of = [&](int64_t item) { return lengths[static_cast<size_t>(item)]; };
  std::stable_sort(items.begin(), items.end(),
                   [&](int64_t a, int64_t b) { return length_of(a) > length_of(b); });
  std::vector<std::vector<int64_t>> rows;
  std::map<int64_t, std::vector<size_t>> rows_with_room;  // by the room that is left
  for (const int64_t item : items) {
    const int64_t length = length_of(item);
    const auto fullest = rows_with_room.lower_bound(length);
    int64_t room = capacity;
    size_t row = rows.size();
    if (fullest == rows_with_room.end()) {
      rows.emplace_back();
    } else {
      room = fullest->first;
      row = fullest->second.back();
      fullest->second.pop_back();
      if (fullest->second.empty()) rows_with_room.erase(fullest);
    }
    rows[row].push_back(item);
    if (room > length) rows_with_room[room - length].push_back(row);
  }
  for (std::vector<int64_t>& row : rows) std::sort(row.begin(), row.end());
  std::sort(rows.begin(), rows.end());
  return rows;
}

}  // namespace stagecoach::engine
