#ifndef STAGECOACH_TESTS_TESTING_TREE_SUM_H_
#define STAGECOACH_TESTS_TESTING_TREE_SUM_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"

namespace stagecoach::testing {

// Returns the sums of vectors in the order of gradient blocks (partition/cost/replication.h): those
// of the left half, the largest power of two of them, and those of the rest. A vector without
// numbers is left out.
inline std::vector<float> TreeSum(absl::Span<const std::vector<float>> values) {
  if (values.size() == 1) return values.front();
  size_t half = 1;
  while (2 * half < values.size()) half *= 2;
  std::vector<float> left = TreeSum(values.subspan(0, half));
  const std::vector<float> right = TreeSum(values.subspan(half));
  if (left.empty()) return right;
  for (size_t i = 0; i < right.size(); ++i) left[i] += right[i];
  return left;
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_TREE_SUM_H_
