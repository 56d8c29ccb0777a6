#ifndef STAGECOACH_TESTS_TESTING_CUDA_RUNNER_H_
#define STAGECOACH_TESTS_TESTING_CUDA_RUNNER_H_

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/testing/cuda/emulator/async_copies.h"
#include "tests/testing/cuda/emulator/block.h"
#include "tests/testing/cuda/emulator/fiber.h"
#include "tests/testing/cuda/emulator/warpgroup_products.h"
#include "tests/testing/cuda/shared_region.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {

inline constexpr unsigned kLanesPerWarp = 32;
inline constexpr unsigned kMaxThreadsPerBlock = 1024;

// A launch of a kernel in a stream.
struct Grid {
  const void* kernel = nullptr;
  std::function<void()> thread;
  dim3 blocks, threads;
  size_t shared_bytes = 0;
  bool starts_early = false;  // its threads must wait
  unsigned cluster_blocks = 1;
};

// What a warp does with its share of a warpgroup's products.
struct ProductStep {
  enum class Kind : uint8_t { kBegin, kStart, kCommit, kWait };
  Kind kind;
  const ProductOperands* operands = nullptr;  // kStart
  size_t groups = 0;                          // kWait
  const char* fault = nullptr;                // found then
};

// Runs the clusters of a grid one after the other, in an order like that of threads, and the
// threads of their blocks as fibers, which are reused. There is one runner; its users hold the
// machine's lock.
class Runner {
 public:
  static Runner& Get();

  void Run(const Grid& grid, ThreadOrder order, uint64_t seed);

  // These act on the running thread; see block.h.
  int BlockBarrier(bool predicate, Location location);
  void ClusterBarrier(Location location);
  const void* SharedOfBlock(const void* own, unsigned rank, Location location);
  uint64_t WarpExchange(WarpOperation operation, unsigned mask, uint64_t value, unsigned source,
                        Location location);
  void WarpTogether(WarpWork work, void* operands, Location location);
  void StartCopy(void* to, const void* from, bool reads, Location location);
  void CommitCopies() { current_->copies.Commit(); }
  void WaitForCopies(size_t groups, Location location);
  uint32_t SharedAddress(const void* address) const;
  void ShowToProducts();
  void DoProductStep(ProductStep step, Location location);
  void WaitForEarlierKernels() { current_->has_waited = true; }
  // Aborts unless these are 16 bytes of the block's shared memory, aligned.
  void CheckShared(const void* address, Location location);
  unsigned lane() const { return current_->lane; }
  unsigned char* shared_memory() const { return block_->shared.data(); }

 private:
  struct Thread {
    std::unique_ptr<Fiber> fiber;
    uint3 index{};
    unsigned lane = 0, warp = 0;
    Location location;  // where it last began to wait
    // The arguments of its exchange.
    WarpOperation operation = WarpOperation::kBarrier;
    unsigned mask = 0, source = 0;
    uint64_t value = 0;
    uint64_t result = 0;
    WarpWork work = nullptr;
    AsyncCopies copies;
    bool has_waited = false;  // for earlier kernels
  };
  // One bit per lane. A lane that is alive is ready, waits in an exchange, waits at the block's
  // barrier, or runs.
  struct Warp {
    unsigned alive = 0, ready = 0, waiting = 0;
  };

  // A block of the running cluster.
  struct Block {
    uint3 index{};
    SharedRegion shared;
    std::vector<Thread> threads = std::vector<Thread>(kMaxThreadsPerBlock);
    std::array<Warp, kMaxThreadsPerBlock / kLanesPerWarp> warps;
    std::array<WarpProducts, kMaxThreadsPerBlock / kLanesPerWarp> products;
    std::vector<uint8_t> is_hidden;  // ProductMemory's
    unsigned ready_warps = 0;        // one bit per warp that has ready lanes
    unsigned alive = 0, ended = 0;
    // The block's barrier: how many wait at it, and where; the current votes, and the previous
    // ones.
    unsigned at_barrier = 0;
    Location barrier_location;
    int votes = 0, barrier_result = 0;
  };

  Runner() = default;
  static void Body(void* runner);
  void Start(const Grid& grid, Block& block);
  void RunCluster(const Grid& grid, uint64_t cluster);
  // Makes a block of the cluster the running one.
  void Enter(Block& block);
  // Returns a block that has ready threads, or null.
  Block* PickBlock();
  unsigned AliveInCluster() const;
  void EndThread();
  // Continues with a thread that is ready, which may be the running one.
  void Switch(Fiber& from);
  Thread& Pick();
  unsigned PickBit(unsigned bits);
  unsigned Random();

  void MakeReady(unsigned warp, unsigned lanes);
  bool Complete(const Thread& thread) const;
  void Release(const Thread& thread);
  void WorkTogether(const Thread& thread, unsigned lanes);
  // Marks 16 bytes of shared memory as not shown to products, or as shown.
  void Hide(const void* chunk, bool hidden);
  static void DoProductSteps(void* const* steps);
  // Aborts if the running thread, the last of its block, leaves products under way, or if warps of
  // a warpgroup have started different ones.
  void CheckProducts() const;
  Thread& At(unsigned warp, unsigned lane) { return block_->threads[warp * kLanesPerWarp + lane]; }
  const Thread& At(unsigned warp, unsigned lane) const {
    return block_->threads[warp * kLanesPerWarp + lane];
  }

  [[noreturn]] void Die(const Thread& thread, const std::string& message) const;
  [[noreturn]] void DieOfDeadlock() const;

  Fiber outside_;
  std::vector<std::unique_ptr<Block>> blocks_;  // as many as the largest cluster so far has
  Block* block_ = nullptr;
  Thread* current_ = nullptr;
  const Grid* grid_ = nullptr;
  ThreadOrder order_ = ThreadOrder::kAscending;
  uint64_t random_ = 1;
  unsigned at_cluster_barrier_ = 0;  // threads
};

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_RUNNER_H_
