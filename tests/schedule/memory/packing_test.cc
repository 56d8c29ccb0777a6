#include "schedule/memory/packing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace stagecoach::schedule {
namespace {

Block Living(int32_t first, int32_t last, int64_t bytes) {
  Block block;
  block.bytes = bytes;
  block.first = first;
  block.last = last;
  return block;
}

bool Overlap(const Block& a, const Block& b) {
  const bool in_time = a.first <= b.last && b.first <= a.last;
  const bool in_space = a.offset < b.offset + b.bytes && b.offset < a.offset + a.bytes;
  return in_time && in_space;
}

int64_t PeakLive(const std::vector<Block>& blocks) {
  int64_t peak = 0;
  for (const Block& at : blocks) {
    int64_t live = 0;
    for (const Block& block : blocks) {
      if (block.first <= at.first && at.first <= block.last) live += block.bytes;
    }
    peak = std::max(peak, live);
  }
  return peak;
}

std::vector<Block> RandomBlocks(std::mt19937& random, int count, int sizes) {
  std::vector<Block> blocks;
  for (int i = 0; i < count; ++i) {
    const int32_t first = static_cast<int32_t>(random() % 60);
    const int32_t last = first + static_cast<int32_t>(random() % 20);
    const int64_t size = 1 + static_cast<int64_t>(random() % static_cast<unsigned>(sizes));
    blocks.push_back(Living(first, last, size * kBlockAlignment));
  }
  return blocks;
}

TEST(PackBlocks, OfNothingIsEmpty) { EXPECT_EQ(PackBlocks({}), 0); }

TEST(PackBlocks, SharesAPlaceBetweenBlocksThatFollowEachOther) {
  std::vector<Block> blocks = {Living(0, 1, 512), Living(2, 3, 512), Living(4, 4, 512)};
  EXPECT_EQ(PackBlocks(absl::MakeSpan(blocks)), 512);
}

TEST(PackBlocks, BlocksThatTouchInOneActionDoNotShare) {
  std::vector<Block> blocks = {Living(0, 2, 512), Living(2, 3, 512)};
  EXPECT_EQ(PackBlocks(absl::MakeSpan(blocks)), 1024);
}

TEST(PackBlocks, FillsTheLowestGapThatIsLargeEnough) {
  // The two large ones leave [0, 1024) free during 5..6, the medium one half of it.
  std::vector<Block> blocks = {Living(0, 4, 1024), Living(3, 9, 1024), Living(5, 9, 512),
                               Living(5, 9, 512), Living(5, 9, 256)};
  EXPECT_EQ(PackBlocks(absl::MakeSpan(blocks)), 2304);
  EXPECT_EQ(blocks[2].offset, 0);
  EXPECT_EQ(blocks[3].offset, 512);
  EXPECT_EQ(blocks[4].offset, 2048);
}

TEST(PackBlocks, NeverOverlapsBlocksThatLiveAtOnce) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<Block> blocks = RandomBlocks(random, 60, 6);
    const int64_t extent = PackBlocks(absl::MakeSpan(blocks));
    for (size_t i = 0; i < blocks.size(); ++i) {
      EXPECT_GE(blocks[i].offset, 0);
      EXPECT_LE(blocks[i].offset + blocks[i].bytes, extent);
      for (size_t j = 0; j < i; ++j) ASSERT_FALSE(Overlap(blocks[i], blocks[j]));
    }
  }
}

TEST(PackBlocks, EqualSizesNeedNoMoreThanThePeak) {
  std::mt19937 random(8);
  for (int round = 0; round < 200; ++round) {
    std::vector<Block> blocks = RandomBlocks(random, 60, 1);
    EXPECT_EQ(PackBlocks(absl::MakeSpan(blocks)), PeakLive(blocks));
  }
}

// Returns blocks of any sizes, some short and some living most of the time.
std::vector<Block> RandomMixture(std::mt19937& random) {
  const auto up_to = [&random](unsigned most) { return 1 + static_cast<int>(random() % most); };
  const int count = up_to(50), sizes = up_to(9), moments = up_to(80), longest = up_to(40);
  std::vector<Block> blocks;
  for (int i = 0; i < count; ++i) {
    const int32_t first = up_to(static_cast<unsigned>(moments));
    const int32_t last = first + up_to(static_cast<unsigned>(longest)) - 1;
    const int64_t unit = random() % 3 == 0 ? 3 * kBlockAlignment : 4 * kBlockAlignment;
    blocks.push_back(Living(first, last, unit * up_to(static_cast<unsigned>(sizes))));
  }
  return blocks;
}

// Follows the definition: scan offsets that end at another block, lowest first.
TEST(PackBlocks, PlacesLargestFirstAtTheLowestFreeOffset) {
  std::mt19937 random(9);
  for (int round = 0; round < 1000; ++round) {
    std::vector<Block> blocks = RandomMixture(random);
    std::stable_sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) {
      return a.bytes != b.bytes ? a.bytes > b.bytes : a.first < b.first;
    });
    std::vector<Block> expected;
    for (Block block : blocks) {
      std::vector<int64_t> candidates = {0};
      for (const Block& placed : expected) candidates.push_back(placed.offset + placed.bytes);
      std::sort(candidates.begin(), candidates.end());
      for (const int64_t candidate : candidates) {
        block.offset = candidate;
        if (std::none_of(expected.begin(), expected.end(),
                         [&](const Block& placed) { return Overlap(placed, block); })) {
          break;
        }
      }
      expected.push_back(block);
    }
    PackBlocks(absl::MakeSpan(blocks));
    EXPECT_EQ(blocks, expected);
  }
}

}  // namespace
}  // namespace stagecoach::schedule
