#include "partition/exact/closed_sets.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/partition/random_layers.h"

namespace stagecoach::partition {
namespace {

constexpr int kNoLimit = 1 << 20;

bool HasLayer(unsigned members, int layer) { return ((members >> layer) & 1) != 0; }

bool IsClosed(unsigned members, const std::vector<Edge>& edges) {
  return std::all_of(edges.begin(), edges.end(), [&](const Edge& edge) {
    return !HasLayer(members, edge.consumer) || HasLayer(members, edge.producer);
  });
}

// Returns how far the last layer is behind the first missing one.
int ReachOf(unsigned members, int layers) {
  int missing = 0, last = -1;
  while (missing < layers && HasLayer(members, missing)) ++missing;
  for (int layer = 0; layer < layers; ++layer) {
    if (HasLayer(members, layer)) last = layer;
  }
  return last - missing;
}

int64_t CutBytesOf(unsigned members, const std::vector<Edge>& edges,
                   const std::vector<int64_t>& output_bytes) {
  int64_t sum = 0;
  for (int layer = 0; layer < static_cast<int>(output_bytes.size()); ++layer) {
    const bool passes = std::any_of(edges.begin(), edges.end(), [&](const Edge& edge) {
      return edge.producer == layer && HasLayer(members, layer) &&
             !HasLayer(members, edge.consumer);
    });
    if (passes) sum += output_bytes[static_cast<size_t>(layer)];
  }
  return sum;
}

unsigned MembersOf(const ClosedSets& sets, int set) {
  unsigned members = 0;
  for (; set != 0; set = sets.parent(set)) members |= 1U << sets.added(set);
  return members;
}

TEST(ClosedSets, AreThoseWithinReachAndAllArcsBetweenThem) {
  std::mt19937 random(1);
  int incomplete = 0;
  for (int trial = 0; trial < 2000; ++trial) {
    SCOPED_TRACE(trial);
    const int layers = 1 + static_cast<int>(random() % 9);
    const unsigned percent = random() % 60;
    std::vector<Edge> edges;
    for (int consumer = 1; consumer < layers; ++consumer) {
      for (int producer = 0; producer < consumer; ++producer) {
        if (random() % 100 < percent) edges.push_back({producer, consumer});
      }
    }
    const std::vector<int64_t> output_bytes = RandomCounts(random, static_cast<size_t>(layers), 9);
    const int reach = static_cast<int>(random() % 10);
    const ClosedSets sets(edges, output_bytes,
                          {.reach = reach, .sets = kNoLimit, .arcs = kNoLimit});
    ASSERT_FALSE(sets.is_too_large());

    std::map<unsigned, int> set_of;
    for (int set = 0; set < sets.size(); ++set) {
      const unsigned members = MembersOf(sets, set);
      ASSERT_TRUE(set_of.emplace(members, set).second) << "twice";
      ASSERT_EQ(sets.cut_bytes(set), CutBytesOf(members, edges, output_bytes));
    }
    ASSERT_EQ(MembersOf(sets, sets.size() - 1), (1U << layers) - 1);
    bool is_complete = true;
    for (unsigned members = 0; members < (1U << layers); ++members) {
      const bool is_near = ReachOf(members, layers) <= reach;
      is_complete = is_complete && (is_near || !IsClosed(members, edges));
      ASSERT_EQ(set_of.contains(members), is_near && IsClosed(members, edges));
      if (!set_of.contains(members)) continue;
      std::vector<int> next;
      for (int layer = 0; layer < layers; ++layer) {
        if (HasLayer(members, layer)) continue;
        const auto more = set_of.find(members | (1U << layer));
        if (more != set_of.end()) next.push_back(more->second);
      }
      const int set = set_of.at(members);
      ASSERT_EQ(std::vector<int>(sets.next(set).begin(), sets.next(set).end()), next);
      for (const int more : next) ASSERT_GT(more, set);
    }
    ASSERT_EQ(sets.is_complete(), is_complete);
    incomplete += is_complete ? 0 : 1;
  }
  EXPECT_GT(incomplete, 200);
}

// Four independent layers: 16 sets, each with as many arcs as it lacks layers.
TEST(ClosedSets, EndAboveEitherLimit) {
  const std::vector<int64_t> output_bytes(4, 1);
  const auto are_too_large = [&](int sets, int arcs) {
    const ClosedSets listed({}, output_bytes, {.reach = 4, .sets = sets, .arcs = arcs});
    EXPECT_EQ(listed.is_complete(), !listed.is_too_large());
    return listed.is_too_large();
  };
  EXPECT_FALSE(are_too_large(16, 32));
  EXPECT_TRUE(are_too_large(15, 32));
  EXPECT_TRUE(are_too_large(16, 31));
}

}  // namespace
}  // namespace stagecoach::partition
