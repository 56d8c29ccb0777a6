#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "tests/testing/cuda/emulator/emulator_test_kernels.h"
#include "tests/testing/cuda/raw_device.h"
#include "tests/testing/cuda/sanitizers.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::Each;
using ::testing::ElementsAreArray;

std::vector<float> Numbers(size_t n) {
  std::vector<float> numbers(n);
  std::iota(numbers.begin(), numbers.end(), 1.0f);
  return numbers;
}

std::string NameOf(ThreadOrder order) {
  if (order == ThreadOrder::kAscending) return "Ascending";
  return order == ThreadOrder::kDescending ? "Descending" : "Random";
}

class Emulator : public ::testing::Test {
 protected:
  Emulator() { Reset({}); }
  ~Emulator() override { EXPECT_EQ(live().total(), 0); }
};

// Launches with its own stream and synchronizes; a test that kills the process must not leave a
// stream behind.
void Synchronized(const std::function<cudaError_t(cudaStream_t)>& launch) {
  const RawStream stream;
  ASSERT_EQ(launch(stream), cudaSuccess);
  stream.Synchronize();
}

class InEveryOrder : public ::testing::TestWithParam<ThreadOrder> {
 protected:
  InEveryOrder() { Reset({.thread_order = GetParam()}); }
  ~InEveryOrder() override { EXPECT_EQ(live().total(), 0); }
};

INSTANTIATE_TEST_SUITE_P(Emulator, InEveryOrder,
                         ::testing::Values(ThreadOrder::kAscending, ThreadOrder::kDescending,
                                           ThreadOrder::kRandom),
                         [](const auto& order) { return NameOf(order.param); });

constexpr int kBlocks = 3, kThreads = 256, kPerBlock = 1000;

// Returns what every thread of LaunchSum stores.
std::vector<float> Sums(bool barrier) {
  const RawStream stream;
  const DeviceArray<float> x(stream, Numbers(kBlocks * kPerBlock));
  const DeviceArray<float> sums(kBlocks * kThreads);
  EXPECT_EQ(LaunchSum(stream, kBlocks, kThreads, x.data(), kPerBlock, sums.data(), barrier),
            cudaSuccess);
  return sums.Download(stream);
}

std::vector<float> RightSums() {
  std::vector<float> sums;
  for (int block = 0; block < kBlocks; ++block) {
    const float sum = 0.5f * kPerBlock * (kPerBlock + 1) + block * kPerBlock * kPerBlock;
    sums.insert(sums.end(), kThreads, sum);
  }
  return sums;
}

TEST_P(InEveryOrder, ABlockSumsThroughSharedMemory) {
  EXPECT_THAT(Sums(/*barrier=*/true), ElementsAreArray(RightSums()));
}

TEST_P(InEveryOrder, ARemovedBarrierOfTheBlockShows) { EXPECT_NE(Sums(false), RightSums()); }

std::vector<float> FromNextBlocks(unsigned blocks, unsigned cluster_blocks, ClusterFault fault) {
  const RawStream stream;
  const DeviceArray<float> results(blocks * 64);
  EXPECT_EQ(LaunchCluster(stream, blocks, cluster_blocks, fault, results.data()), cudaSuccess);
  return results.Download(stream);
}

std::vector<float> RightNextBlocks(unsigned blocks, unsigned cluster_blocks) {
  std::vector<float> expected;
  for (unsigned i = 0; i < blocks * 64; ++i) {
    expected.push_back(static_cast<float>(64 * ((i / 64 + 1) % cluster_blocks) + i % 64));
  }
  return expected;
}

TEST_P(InEveryOrder, ABlockReadsTheSharedMemoryOfItsCluster) {
  for (const unsigned size : {2U, 3U, 8U}) {
    EXPECT_EQ(FromNextBlocks(3 * size, size, ClusterFault::kNone), RightNextBlocks(3 * size, size));
  }
}

TEST_P(InEveryOrder, ARemovedBarrierOfAClusterShows) {
  EXPECT_NE(FromNextBlocks(8, 8, ClusterFault::kNoBarrierBefore), RightNextBlocks(8, 8));
}

std::vector<float> Reversed(bool barrier) {
  const RawStream stream;
  const DeviceArray<float> x(stream, Numbers(32));
  const DeviceArray<float> reversed(32);
  EXPECT_EQ(LaunchReverse(stream, x.data(), reversed.data(), barrier), cudaSuccess);
  return reversed.Download(stream);
}

TEST_P(InEveryOrder, AWarpExchangesThroughSharedMemory) {
  std::vector<float> expected = Numbers(32);
  std::reverse(expected.begin(), expected.end());
  EXPECT_EQ(Reversed(/*barrier=*/true), expected);
}

TEST_P(InEveryOrder, ARemovedBarrierOfAWarpShows) {
  std::vector<float> expected = Numbers(32);
  std::reverse(expected.begin(), expected.end());
  EXPECT_NE(Reversed(/*barrier=*/false), expected);
}

TEST_P(InEveryOrder, EveryThreadOfEveryBlockRunsOnceAndKnowsItsPlace) {
  const dim3 blocks(3, 2, 4), threads(5, 7, 2);
  constexpr size_t kPlaces = 3 * 2 * 4 * 5 * 7 * 2;
  const RawStream stream;
  const DeviceArray<uint3> indices(2 * kPlaces);
  ASSERT_EQ(LaunchIndices(stream, blocks, threads, indices.data()), cudaSuccess);
  const std::vector<uint3> found = indices.Download(stream);
  size_t place = 0;
  for (unsigned block = 0; block < 3 * 2 * 4; ++block) {
    for (unsigned thread = 0; thread < 5 * 7 * 2; ++thread, ++place) {
      const uint3 t = found[2 * place], b = found[2 * place + 1];
      ASSERT_EQ((std::vector{t.x, t.y, t.z}),
                (std::vector{thread % 5, thread / 5 % 7, thread / 35}));
      ASSERT_EQ((std::vector{b.x, b.y, b.z}), (std::vector{block % 3, block / 3 % 2, block / 6}));
    }
  }
}

TEST_P(InEveryOrder, ShufflesGiveWhatTheirLanesHave) {
  constexpr int kLanes = 64;
  const RawStream stream;
  const DeviceArray<int> results(kLanes * kExchanges);
  ASSERT_EQ(LaunchExchanges(stream, kLanes, results.data()), cudaSuccess);
  std::vector<int> expected;
  for (int thread = 0; thread < kLanes; ++thread) {
    for (const int width : {32, 8}) {
      const int first = thread / width * width, lane = thread - first;
      for (const int source :
           {5, lane ^ 3, lane + 4 < width ? lane + 4 : lane, lane >= 4 ? lane - 4 : lane}) {
        expected.push_back(1000 + first + source);
      }
    }
  }
  EXPECT_EQ(results.Download(stream), expected);
}

TEST_P(InEveryOrder, VotesCountEveryThread) {
  constexpr unsigned kVoters = 96;
  const RawStream stream;
  const DeviceArray<unsigned> results(kVoters * kVotes);
  for (const unsigned limit : {0u, 1u, 40u, 96u}) {
    ASSERT_EQ(LaunchVotes(stream, kVoters, static_cast<int>(limit), results.data()), cudaSuccess);
    std::vector<unsigned> expected;
    for (unsigned thread = 0; thread < kVoters; ++thread) {
      unsigned ballot = 0;
      for (unsigned lane = 0; lane < 32; ++lane) {
        if (thread / 32 * 32 + lane < limit) ballot |= 1u << lane;
      }
      for (const unsigned vote : {ballot, unsigned{ballot != 0}, unsigned{ballot == 0xffffffffu},
                                  limit, unsigned{limit > 0}, unsigned{limit == kVoters}}) {
        expected.push_back(vote);
      }
    }
    EXPECT_EQ(results.Download(stream), expected) << "limit " << limit;
  }
}

TEST_P(InEveryOrder, AtomicSumsOfIntegersLoseNothing) {
  constexpr int kAdders = 100;
  const RawStream stream;
  const DeviceArray<int> count(stream, std::vector<int>{7}), old(kAdders);
  ASSERT_EQ(LaunchCount(stream, kAdders, count.data(), old.data()), cudaSuccess);
  EXPECT_EQ(count.Download(stream), std::vector<int>{7 + kAdders});
  std::vector<int> seen = old.Download(stream), expected(kAdders);
  std::sort(seen.begin(), seen.end());
  std::iota(expected.begin(), expected.end(), 7);
  EXPECT_EQ(seen, expected);
}

// Returns small integers, whose bfloat16 bits are the upper ones of a float's, and whose sums are
// exact.
float MatrixElement(int matrix, size_t i) {
  return static_cast<float>((i * 37 + static_cast<size_t>(matrix) * 11) % 23) - 11.0F;
}
std::vector<uint16_t> Matrix(int matrix, size_t elements = 256) {
  std::vector<uint16_t> bits;
  for (size_t i = 0; i < elements; ++i) {
    bits.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(MatrixElement(matrix, i)) >> 16));
  }
  return bits;
}

// Returns what both warps of LaunchTileProduct store.
std::vector<float> TileProduct(int rows, bool transposed, ProductFault fault) {
  const RawStream stream;
  const DeviceArray<uint16_t> a(stream, Matrix(0)), b(stream, Matrix(1));
  const DeviceArray<float> c(2 * 256);
  EXPECT_EQ(LaunchTileProduct(stream, a.data(), b.data(), rows, transposed, fault, c.data()),
            cudaSuccess);
  return c.Download(stream);
}

std::vector<float> RightTileProduct(size_t rows, bool transposed) {
  std::vector<float> c;
  for (size_t place = 0; place < 2 * 256; ++place) {
    const size_t row = place / 16 % 16, column = place % 16;
    float sum = 0;
    for (size_t k = 0; k < 16 && row < rows; ++k) {
      sum += MatrixElement(0, row * 16 + k) *
             MatrixElement(1, transposed ? column * 16 + k : k * 16 + column);
    }
    c.push_back(sum);
  }
  return c;
}

TEST_P(InEveryOrder, TensorCoresMultiplyWhatCopiesBrought) {
  for (const bool transposed : {false, true}) {
    for (const int rows : {16, 11}) {
      EXPECT_EQ(TileProduct(rows, transposed, ProductFault::kNone),
                RightTileProduct(static_cast<size_t>(rows), transposed));
    }
  }
}

TEST_P(InEveryOrder, AFaultOfAProductShows) {
  for (const auto fault :
       {ProductFault::kNoWait, ProductFault::kNoBarrier, ProductFault::kOtherLayout}) {
    EXPECT_NE(TileProduct(16, false, fault), RightTileProduct(16, false))
        << static_cast<int>(fault);
  }
}

constexpr size_t kSide = 64;  // of the matrices of a warpgroup

std::vector<float> WarpgroupProduct(WarpgroupFault fault) {
  const RawStream stream;
  const DeviceArray<uint16_t> a(stream, Matrix(0, kSide * kSide)),
      b(stream, Matrix(1, kSide * kSide));
  const DeviceArray<float> c(kSide * kSide);
  EXPECT_EQ(LaunchWarpgroupProduct(stream, a.data(), b.data(), fault, c.data()), cudaSuccess);
  return c.Download(stream);
}

std::vector<float> RightWarpgroupProduct() {
  std::vector<float> c;
  for (size_t place = 0; place < kSide * kSide; ++place) {
    float sum = 0;
    for (size_t k = 0; k < kSide; ++k) {
      sum +=
          MatrixElement(0, place / kSide * kSide + k) * MatrixElement(1, place % kSide * kSide + k);
    }
    c.push_back(sum);
  }
  return c;
}

TEST_P(InEveryOrder, WarpgroupsMultiplyWhatDescriptorsSay) {
  EXPECT_EQ(WarpgroupProduct(WarpgroupFault::kNone), RightWarpgroupProduct());
  EXPECT_NE(WarpgroupProduct(WarpgroupFault::kOtherStride), RightWarpgroupProduct());
  EXPECT_NE(WarpgroupProduct(WarpgroupFault::kReadsEarly), RightWarpgroupProduct());
}

TEST_F(Emulator, ThreadsRunInTheOrderAskedFor) {
  constexpr int kAdders = 64;
  std::vector<int> orders[3];
  for (int order = 0; order < 3; ++order) {
    Reset({.thread_order = static_cast<ThreadOrder>(order)});
    const RawStream stream;
    const DeviceArray<int> count(stream, std::vector<int>{0}), old(kAdders);
    ASSERT_EQ(LaunchCount(stream, kAdders, count.data(), old.data()), cudaSuccess);
    orders[order] = old.Download(stream);
  }
  EXPECT_TRUE(std::is_sorted(orders[0].begin(), orders[0].end()));
  EXPECT_TRUE(std::is_sorted(orders[1].rbegin(), orders[1].rend()));
  EXPECT_NE(orders[2], orders[0]);
  EXPECT_NE(orders[2], orders[1]);
}

TEST_F(Emulator, SharedMemoryIsPoisonedBeforeEveryBlock) {
  const RawStream stream;
  const DeviceArray<float> found(64);
  ASSERT_EQ(LaunchSum(stream, 1, 64, found.data(), 64, found.data(), true), cudaSuccess);
  ASSERT_EQ(LaunchUninitialized(stream, 64, found.data()), cudaSuccess);
  for (const float value : found.Download(stream)) EXPECT_TRUE(std::isnan(value));
}

TEST_F(Emulator, Bfloat16IsCudasOwn) {
  const RawStream stream;
  const DeviceArray<float> x(stream, {1.0f, 1.00390625f, 1.01171875f, -3.0f, 65280.0f});
  ASSERT_EQ(LaunchTwice(stream, x.data(), 5), cudaSuccess);
  // The values are rounded to 8 bits, ties to even, and doubled.
  EXPECT_EQ(x.Download(stream), (std::vector<float>{2.0f, 2.0f, 2.03125f, -6.0f, 130560.0f}));
}

TEST_F(Emulator, RefusesLaunchesThatNoGpuCanDo) {
  const RawStream stream;
  const dim3 one(1);
  EXPECT_EQ(LaunchNothing(stream, one, dim3(1024), 0), cudaSuccess);
  EXPECT_EQ(LaunchNothing(stream, one, dim3(1025), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing(stream, one, dim3(64, 32), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing(stream, one, dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing(stream, one, dim3(0), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing(stream, dim3(0), one, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing(stream, dim3(1, 65536), one, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing(stream, dim3(0x80000000u), one, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(LaunchNothing(stream, one, one, (227 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchNothing(nullptr, one, one, 0), cudaErrorInvalidResourceHandle);
}

TEST_F(Emulator, RefusesClustersThatNoGpuHas) {
  const RawStream stream;
  const DeviceArray<float> results(18 * 64);
  for (const auto& [blocks, cluster_blocks] : {std::pair(18U, 9U), std::pair(9U, 2U)}) {
    EXPECT_EQ(LaunchCluster(stream, blocks, cluster_blocks, ClusterFault::kNone, results.data()),
              cudaErrorInvalidClusterSize);
  }
}

TEST_F(Emulator, MuchSharedMemoryMustBeAskedFor) {
  const RawStream stream;
  EXPECT_EQ(LaunchNothingDirectly(stream, 48 << 10), cudaSuccess);
  EXPECT_EQ(LaunchNothingDirectly(stream, (48 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(LaunchNothing(stream, dim3(1), dim3(1), 227 << 10), cudaSuccess);
  EXPECT_EQ(LaunchNothingDirectly(stream, 227 << 10), cudaSuccess);
}

TEST_F(Emulator, AKernelRunsOnTheGpuOfItsStreamOnly) {
  const RawStream stream;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(LaunchNothing(stream, dim3(1), dim3(1), 0), cudaErrorInvalidResourceHandle);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

using EmulatorDeathTest = Emulator;

void MakeMistake(ThreadOrder order, Mistake mistake) {
  Reset({.thread_order = order});
  const DeviceArray<int> result(4);
  Synchronized([&](cudaStream_t stream) { return LaunchMistake(stream, mistake, result.data()); });
}

class MistakeDeathTest : public InEveryOrder {};
INSTANTIATE_TEST_SUITE_P(Emulator, MistakeDeathTest,
                         ::testing::Values(ThreadOrder::kAscending, ThreadOrder::kDescending,
                                           ThreadOrder::kRandom),
                         [](const auto& order) { return NameOf(order.param); });

TEST_P(MistakeDeathTest, ABarrierThatNotAllThreadsReachAborts) {
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kBarrierInOneBranch),
               "emulator_test_kernels.cu:[0-9]+");
}

TEST_P(MistakeDeathTest, ABarrierInEachBranchAborts) {
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kBarriersInTwoBranches),
               "comes to the __syncthreads of .*cu:[0-9]+ while others of its block wait at that");
}

TEST_P(MistakeDeathTest, AThreadThatEndsBeforeABarrierAborts) {
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kThreadEndsBeforeBarrier),
               "ends while others|after 1 of its block have ended");
}

TEST_P(MistakeDeathTest, ALaneOutsideItsMaskAborts) {
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kLaneOutsideItsMask), "which does not name it");
}

TEST_P(MistakeDeathTest, AValueOfALaneThatTakesNoPartAborts) {
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kSourceOutsideMask),
               "value of lane 20, which takes no part");
}

TEST_P(MistakeDeathTest, LanesThatWaitWithOtherMasksAbort) {
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kMasksThatDiffer), "that do not come");
}

TEST_P(MistakeDeathTest, LanesThatMeetInOtherOperationsAbort) {
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kOperationsThatDiffer), "in another operation");
}

TEST_P(MistakeDeathTest, AThreadThatDoesNotWaitForEarlierKernelsAborts) {
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kStartIsNotAwaited), "without having waited");
}

TEST_P(MistakeDeathTest, AProductThatNotAWholeWarpDoesAborts) {
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kPartOfAWarpMultiplies), "without lane 7");
  EXPECT_DEATH(MakeMistake(GetParam(), Mistake::kProductsAtTwoLines), "others of its warp are at");
}

TEST_P(MistakeDeathTest, BlocksOfAClusterThatDoNotMeetAbort) {
  const auto run = [](ClusterFault fault) {
    Reset({.thread_order = GetParam()});
    FromNextBlocks(8, 4, fault);
  };
  EXPECT_DEATH(run(ClusterFault::kNoBarrierAfter), "of its cluster, which is ending");
  EXPECT_DEATH(run(ClusterFault::kReadsOutside), "what no block of its cluster has");
  EXPECT_DEATH(run(ClusterFault::kOneThreadEndsBefore),
               "the barrier of its cluster|wait at a barrier");
}

TEST_F(EmulatorDeathTest, MatricesAreAlignedAndInSharedMemory) {
  const auto make = [](Mistake mistake) { MakeMistake(ThreadOrder::kAscending, mistake); };
  EXPECT_DEATH(make(Mistake::kUnalignedMatrix), "an address that is not aligned");
  EXPECT_DEATH(make(Mistake::kMatrixOutsideShared), "an address outside shared memory");
}

TEST_F(EmulatorDeathTest, ACopyIsAwaitedBeforeAnythingElseIsDone) {
  const auto make = [](Mistake mistake) { MakeMistake(ThreadOrder::kAscending, mistake); };
  EXPECT_DEATH(make(Mistake::kCopyIsNotAwaited), "before its asynchronous copies have arrived");
  EXPECT_DEATH(make(Mistake::kCopySourceChanges), "whose source has changed");
  EXPECT_DEATH(make(Mistake::kCopyDestinationChanges), "whose destination has changed");
}

TEST_F(EmulatorDeathTest, ProductsOfWarpgroupsAreBegunShownAndAwaited) {
  EXPECT_DEATH(WarpgroupProduct(WarpgroupFault::kIsNotBegun), "without BeginProducts");
  EXPECT_DEATH(WarpgroupProduct(WarpgroupFault::kIsNotShown), "was not shown to products");
  EXPECT_DEATH(WarpgroupProduct(WarpgroupFault::kIsNotAwaited), "before products of its block");
  EXPECT_DEATH(WarpgroupProduct(WarpgroupFault::kFactorChanges), "whose factors have changed");
  EXPECT_DEATH(WarpgroupProduct(WarpgroupFault::kResultChanges), "was written to by others");
  EXPECT_DEATH(WarpgroupProduct(WarpgroupFault::kOneWarpDoesOther), "started different products");
}

TEST_F(EmulatorDeathTest, SaysWhichBlockAndThread) {
  EXPECT_DEATH(MakeMistake(ThreadOrder::kAscending, Mistake::kLaneOutsideItsMask),
               "block \\(0, 0, 0\\), thread \\(0, 0, 0\\), .*Wrong");
}

// Without a sanitizer, a read beyond shared memory is noticed from the next 16 bytes on.
TEST_F(EmulatorDeathTest, AReadBeyondSharedMemoryDies) {
  EXPECT_DEATH(
      {
        const DeviceArray<int> value(1);
        Synchronized(
            [&](cudaStream_t stream) { return LaunchReadShared(stream, 100, 112, value.data()); });
      },
      "");
}

void WriteShared(int bytes, int index) {
  Synchronized([&](cudaStream_t stream) { return LaunchWriteShared(stream, bytes, index); });
}

TEST_F(EmulatorDeathTest, AWriteBesideSharedMemoryDies) {
  EXPECT_DEATH(WriteShared(100, 100), "after the shared memory|AddressSanitizer");
  EXPECT_DEATH(WriteShared(100, -1), "before the shared memory|AddressSanitizer");
}

void WriteBeside(int floats, int index) {
  const DeviceArray<float> x(static_cast<size_t>(floats));
  Synchronized([&](cudaStream_t stream) { return LaunchWrite(stream, x.data(), index); });
}

TEST_F(EmulatorDeathTest, AWriteBesideDeviceMemoryDies) {
  EXPECT_DEATH(WriteBeside(10, 10), "after an allocation of device memory|AddressSanitizer");
  EXPECT_DEATH(WriteBeside(10, -1), "before an allocation of device memory|AddressSanitizer");
}

TEST_F(EmulatorDeathTest, AReadBesideDeviceMemoryDiesWithAddressSanitizer) {
  if (!HasAddressSanitizer()) GTEST_SKIP() << "this build has no AddressSanitizer";
  const auto read = [](int index) {
    const DeviceArray<float> x(10), value(1);
    Synchronized(
        [&](cudaStream_t stream) { return LaunchRead(stream, x.data(), index, value.data()); });
  };
  EXPECT_DEATH(read(10), "use-after-poison.*|emulator_test_kernels.cu");
  EXPECT_DEATH(read(-1), "use-after-poison.*|emulator_test_kernels.cu");
}

}  // namespace
}  // namespace stagecoach::testing::cuda
