#include "base/text/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <vector>

#include "absl/strings/ascii.h"

namespace stagecoach::base {
namespace {

// Returns the minimum number of single-letter insertions, deletions and replacements that turn `a`
// into `b`, by Wagner and Fischer's dynamic program.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);  // row[j]: from the first i letters of a to j of b
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

}  // namespace

std::string Nearest(absl::string_view word, absl::Span<const std::string> known) {
  const std::string typed = absl::AsciiStrToLower(word);
  const std::string* nearest = nullptr;
  size_t nearest_distance = 0;
  for (const std::string& candidate : known) {
    const size_t longest = std::max(typed.size(), candidate.size());
    const size_t distance = EditDistance(typed, absl::AsciiStrToLower(candidate));
    const bool near = distance <= (longest + 2) / 3 && distance < longest;
    if (near && (nearest == nullptr || distance < nearest_distance)) {
      nearest = &candidate;
      nearest_distance = distance;
    }
  }
  return nearest == nullptr ? "" : *nearest;
}

}  // namespace stagecoach::base
