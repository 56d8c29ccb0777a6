#include "tests/testing/cuda/runner.h"

#include <cxxabi.h>
#include <dlfcn.h>

#include <bit>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"

// CUDA's own names for the position of a thread. One thread of one kernel runs at a time in the
// whole process, so plain variables suffice.
uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace stagecoach::testing::cuda {
namespace {

std::string Text(Location location) {
  return absl::StrCat(location.file_name(), ":", location.line());
}

// Returns the symbol at the kernel's address if it is known; "a kernel" otherwise.
std::string KernelName(const void* kernel) {
  Dl_info info;
  if (dladdr(kernel, &info) == 0 || info.dli_saddr != kernel) return "a kernel";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &status), &std::free);
  return status == 0 ? name.get() : info.dli_sname;
}

constexpr unsigned kWarpsPerGroup = 4;

bool SameLine(Location a, Location b) {
  return a.line() == b.line() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

unsigned FirstBit(unsigned bits) { return static_cast<unsigned>(std::countr_zero(bits)); }

}  // namespace

Runner& Runner::Get() {
  static Runner* const runner = new Runner;  // never destroyed: a kernel may run at exit
  return *runner;
}

void Runner::Die(const Thread& thread, const std::string& message) const {
  std::fprintf(stderr, "emulated CUDA: %s: block (%u, %u, %u), thread (%u, %u, %u), %s: %s\n",
               KernelName(grid_->kernel).c_str(), blockIdx.x, blockIdx.y, blockIdx.z,
               thread.index.x, thread.index.y, thread.index.z, thread.location.function_name(),
               message.c_str());
  std::abort();
}

void Runner::DieOfDeadlock() const {
  for (unsigned warp = 0; warp < block_->warps.size(); ++warp) {
    if (const unsigned waiting = block_->warps[warp].waiting; waiting != 0) {
      const Thread& thread = At(warp, FirstBit(waiting));
      Die(thread,
          absl::StrCat("waits at ", Text(thread.location), " for lanes of mask 0x",
                       absl::Hex(thread.mask), " that do not come, while ", block_->at_barrier,
                       " of ", block_->alive, " threads wait at __syncthreads"));
    }
  }
  STAGECOACH_CHECK(at_cluster_barrier_ > 0, "threads of a block that neither run nor wait");
  Die(block_->threads[0], absl::StrCat("is of a cluster ", at_cluster_barrier_,
                                       " of whose threads wait at a barrier for ever"));
  std::abort();
}

// ---- Choosing the thread to run.

unsigned Runner::Random() {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<unsigned>(random_ >> 32);
}

unsigned Runner::PickBit(unsigned bits) {
  if (order_ == ThreadOrder::kAscending) return FirstBit(bits);
  if (order_ == ThreadOrder::kDescending) {
    return kLanesPerWarp - 1 - static_cast<unsigned>(std::countl_zero(bits));
  }
  // Picks the first one at or after a random place.
  const unsigned start = Random() % kLanesPerWarp;
  return (FirstBit(std::rotr(bits, static_cast<int>(start))) + start) % kLanesPerWarp;
}

Runner::Thread& Runner::Pick() {
  // A warp runs until its lanes wait; in random order another one may overtake it.
  const bool stays = current_ != nullptr && (block_->ready_warps >> current_->warp & 1) != 0 &&
                     (order_ != ThreadOrder::kRandom || Random() % kLanesPerWarp != 0);
  const unsigned warp = stays ? current_->warp : PickBit(block_->ready_warps);
  const unsigned lane = PickBit(block_->warps[warp].ready);
  block_->warps[warp].ready &= ~(1u << lane);
  if (block_->warps[warp].ready == 0) block_->ready_warps &= ~(1u << warp);
  return At(warp, lane);
}

void Runner::Enter(Block& block) {
  block_ = &block;
  blockIdx = block.index;
  current_ = nullptr;
}

Runner::Block* Runner::PickBlock() {
  const size_t count = grid_->cluster_blocks;
  const size_t first = order_ == ThreadOrder::kRandom ? Random() % count : 0;
  for (size_t i = 0; i < count; ++i) {
    const size_t place = (first + i) % count;
    Block& block = *blocks_[order_ == ThreadOrder::kDescending ? count - 1 - place : place];
    if (block.ready_warps != 0) return &block;
  }
  return nullptr;
}

unsigned Runner::AliveInCluster() const {
  unsigned alive = 0;
  for (unsigned i = 0; i < grid_->cluster_blocks; ++i) alive += blocks_[i]->alive;
  return alive;
}

void Runner::Switch(Fiber& from) {
  if (block_->ready_warps == 0) {
    Block* const other = PickBlock();
    if (other == nullptr) {
      if (AliveInCluster() > 0) DieOfDeadlock();
      from.SwitchTo(outside_);
      return;
    }
    Enter(*other);
  }
  Thread& next = Pick();
  current_ = &next;
  threadIdx = next.index;
  if (next.fiber.get() != &from) from.SwitchTo(*next.fiber);
}

void Runner::MakeReady(unsigned warp, unsigned lanes) {
  block_->warps[warp].ready |= lanes;
  block_->ready_warps |= 1u << warp;
}

void Runner::Body(void* runner_address) {
  Runner& runner = *static_cast<Runner*>(runner_address);
  for (;;) {
    runner.grid_->thread();
    runner.EndThread();
  }
}

void Runner::EndThread() {
  Thread& thread = *current_;
  if (thread.copies.under_way()) Die(thread, "ends before its asynchronous copies have arrived");
  thread.copies.ForgetArrived();
  const bool has_waited = std::exchange(thread.has_waited, false);
  if (grid_->starts_early && !has_waited) {
    Die(thread, "may start early, and ends without having waited for earlier kernels");
  }
  Warp& warp = block_->warps[thread.warp];
  warp.alive &= ~(1u << thread.lane);
  --block_->alive;
  ++block_->ended;
  if (block_->alive == 0) CheckProducts();
  if (block_->at_barrier > 0) {
    Die(thread, absl::StrCat("ends while others of its block wait at the __syncthreads of ",
                             Text(block_->barrier_location)));
  }
  if (at_cluster_barrier_ > 0) Die(thread, "ends while others of its cluster wait at a barrier");
  // This may be the thread that lanes of its warp were waiting for.
  for (unsigned lanes = warp.waiting; lanes != 0; lanes &= lanes - 1) {
    const unsigned lane = FirstBit(lanes);
    if ((warp.waiting >> lane & 1) == 0) continue;  // released with an earlier one
    if (const Thread& other = At(thread.warp, lane); Complete(other)) Release(other);
  }
  Switch(*thread.fiber);
}

void Runner::Start(const Grid& grid, Block& block) {
  const unsigned threads = grid.threads.x * grid.threads.y * grid.threads.z;
  for (unsigned i = 0; i < threads; ++i) {
    Thread& thread = block.threads[i];
    if (thread.fiber == nullptr) thread.fiber = std::make_unique<Fiber>(&Runner::Body, this);
    thread.index = {i % grid.threads.x, i / grid.threads.x % grid.threads.y,
                    i / (grid.threads.x * grid.threads.y)};
    thread.lane = i % kLanesPerWarp;
    thread.warp = i / kLanesPerWarp;
    thread.location = {};
  }
  block.warps.fill({});
  block.products.fill({});
  block.is_hidden.assign(grid.shared_bytes / AsyncCopies::kBytes + 1, 0);
  block.ready_warps = 0;
  Enter(block);
  for (unsigned first = 0; first < threads; first += kLanesPerWarp) {
    const unsigned lanes = std::min(threads - first, kLanesPerWarp);
    const unsigned mask = 0xffffffffu >> (kLanesPerWarp - lanes);
    block.warps[first / kLanesPerWarp].alive = mask;
    MakeReady(first / kLanesPerWarp, mask);
  }
  block.alive = threads;
  block.ended = block.at_barrier = 0;
  block.shared.Fit(grid.shared_bytes);
  block.shared.StartBlock();
}

void Runner::RunCluster(const Grid& grid, uint64_t cluster) {
  while (blocks_.size() < grid.cluster_blocks) blocks_.push_back(std::make_unique<Block>());
  for (unsigned rank = 0; rank < grid.cluster_blocks; ++rank) {
    const uint64_t block = cluster * grid.cluster_blocks + rank;
    blocks_[rank]->index = {static_cast<unsigned>(block % grid.blocks.x),
                            static_cast<unsigned>(block / grid.blocks.x % grid.blocks.y),
                            static_cast<unsigned>(block / grid.blocks.x / grid.blocks.y)};
    Start(grid, *blocks_[rank]);
  }
  at_cluster_barrier_ = 0;
  Enter(*PickBlock());
  Switch(outside_);
  for (unsigned rank = 0; rank < grid.cluster_blocks; ++rank) blocks_[rank]->shared.EndBlock();
}

void Runner::Run(const Grid& grid, ThreadOrder order, uint64_t seed) {
  grid_ = &grid;
  order_ = order;
  random_ = seed | 1;
  gridDim = grid.blocks;
  blockDim = grid.threads;
  const uint64_t clusters =
      uint64_t{grid.blocks.x} * grid.blocks.y * grid.blocks.z / grid.cluster_blocks;
  // The clusters are i * step + first, modulo their number: every one once, in an order that looks
  // random.
  uint64_t step = 1, first = 0;
  if (order == ThreadOrder::kDescending) step = clusters - 1, first = clusters - 1;
  if (order == ThreadOrder::kRandom) {
    first = Random() % clusters;
    do step = Random() % clusters;
    while (std::gcd(step, clusters) != 1);
  }
  for (uint64_t i = 0, cluster = first; i < clusters; ++i, cluster = (cluster + step) % clusters) {
    RunCluster(grid, cluster);
  }
  grid_ = nullptr;
}

// ---- Waiting.

int Runner::BlockBarrier(bool predicate, Location location) {
  Thread& thread = *current_;
  thread.location = location;
  if (block_->ended > 0) {
    Die(thread, absl::StrCat("comes to the __syncthreads of ", Text(location), " after ",
                             block_->ended, " of its block have ended"));
  }
  if (block_->at_barrier == 0) {
    block_->barrier_location = location;
    block_->votes = 0;
  } else if (!SameLine(location, block_->barrier_location)) {
    Die(thread, absl::StrCat("comes to the __syncthreads of ", Text(location),
                             " while others of its block wait at that of ",
                             Text(block_->barrier_location)));
  }
  ++block_->at_barrier;
  block_->votes += predicate ? 1 : 0;
  if (block_->at_barrier == block_->alive) {
    block_->at_barrier = 0;
    block_->barrier_result = block_->votes;
    for (unsigned warp = 0; warp < block_->warps.size(); ++warp) {
      if (block_->warps[warp].alive != 0) MakeReady(warp, block_->warps[warp].alive);
    }
  }
  Switch(*thread.fiber);
  return block_->barrier_result;
}

void Runner::ClusterBarrier(Location location) {
  Thread& thread = *current_;
  thread.location = location;
  for (unsigned i = 0; i < grid_->cluster_blocks; ++i) {
    if (blocks_[i]->ended > 0) {
      Die(thread, absl::StrCat("comes to the barrier of its cluster at ", Text(location), " after ",
                               blocks_[i]->ended, " of its block ", i, " have ended"));
    }
  }
  if (++at_cluster_barrier_ == AliveInCluster()) {
    at_cluster_barrier_ = 0;
    Block* const own = block_;
    for (unsigned i = 0; i < grid_->cluster_blocks; ++i) {
      block_ = blocks_[i].get();
      for (unsigned warp = 0; warp < block_->warps.size(); ++warp) {
        if (block_->warps[warp].alive != 0) MakeReady(warp, block_->warps[warp].alive);
      }
    }
    block_ = own;
  }
  Switch(*thread.fiber);
}

const void* Runner::SharedOfBlock(const void* own, unsigned rank, Location location) {
  current_->location = location;
  const auto offset =
      reinterpret_cast<uintptr_t>(own) - reinterpret_cast<uintptr_t>(block_->shared.data());
  if (rank >= grid_->cluster_blocks || offset >= grid_->shared_bytes) {
    Die(*current_, absl::StrCat("reads at ", Text(location), " what no block of its cluster has"));
  }
  if (blocks_[rank]->ended > 0) {
    Die(*current_, absl::StrCat("reads at ", Text(location), " the shared memory of block ", rank,
                                " of its cluster, which is ending"));
  }
  return blocks_[rank]->shared.data() + offset;
}

bool Runner::Complete(const Thread& thread) const {
  const Warp& warp = block_->warps[thread.warp];
  const unsigned lanes = thread.mask & warp.alive;
  if ((warp.waiting & lanes) != lanes) return false;
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    if (At(thread.warp, FirstBit(left)).mask != thread.mask) return false;
  }
  return true;
}

void Runner::Release(const Thread& thread) {
  Warp& warp = block_->warps[thread.warp];
  const unsigned lanes = thread.mask & warp.alive;
  unsigned votes = 0;
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    const unsigned lane = FirstBit(left);
    const Thread& other = At(thread.warp, lane);
    if (other.operation != thread.operation) {
      Die(other,
          absl::StrCat("is at ", Text(other.location), " in another operation of the warp ",
                       "than the thread that it meets, which is at ", Text(thread.location)));
    }
    if (other.value != 0) votes |= 1u << lane;
  }
  for (unsigned left = lanes; left != 0; left &= left - 1) {
    Thread& other = At(thread.warp, FirstBit(left));
    if (other.operation == WarpOperation::kBallot) other.result = votes;
    if (other.operation != WarpOperation::kShuffle) continue;
    if ((lanes >> other.source & 1) == 0) {
      Die(other, absl::StrCat("reads at ", Text(other.location), " the value of lane ",
                              other.source, ", which takes no part"));
    }
    other.result = At(thread.warp, other.source).value;
  }
  if (thread.operation == WarpOperation::kTogether) WorkTogether(thread, lanes);
  warp.waiting &= ~lanes;
  MakeReady(thread.warp, lanes);
}

void Runner::WorkTogether(const Thread& thread, unsigned lanes) {
  std::array<void*, kLanesPerWarp> operands;
  for (unsigned lane = 0; lane < kLanesPerWarp; ++lane) {
    const Thread& other = At(thread.warp, lane);
    if ((lanes >> lane & 1) == 0) {
      Die(thread, absl::StrCat("does at ", Text(thread.location),
                               " what takes a whole warp, without lane ", lane));
    }
    if (other.work != thread.work || !SameLine(other.location, thread.location)) {
      Die(other, absl::StrCat("is at ", Text(other.location), " while others of its warp are at ",
                              Text(thread.location)));
    }
    operands[lane] = reinterpret_cast<void*>(other.value);
  }
  thread.work(operands.data());
}

uint64_t Runner::WarpExchange(WarpOperation operation, unsigned mask, uint64_t value,
                              unsigned source, Location location) {
  Thread& thread = *current_;
  thread.location = location;
  thread.operation = operation;
  thread.mask = mask;
  thread.value = value;
  thread.source = source;
  if ((mask >> thread.lane & 1) == 0) {
    Die(thread, absl::StrCat("is lane ", thread.lane, ", and comes to ", Text(location),
                             " with mask 0x", absl::Hex(mask), ", which does not name it"));
  }
  block_->warps[thread.warp].waiting |= 1u << thread.lane;
  if (Complete(thread)) Release(thread);
  Switch(*thread.fiber);
  return thread.result;
}

void Runner::WarpTogether(WarpWork work, void* operands, Location location) {
  current_->work = work;
  WarpExchange(WarpOperation::kTogether, 0xffffffffu, reinterpret_cast<uint64_t>(operands), 0,
               location);
}

// ---- Shared memory in units of 16 bytes, and copies into it.

void Runner::CheckShared(const void* address, Location location) {
  current_->location = location;
  const auto offset =
      reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(block_->shared.data());
  if (offset % 16 != 0) {
    Die(*current_, absl::StrCat("has at ", Text(location), " an address that is not aligned"));
  }
  if (offset + 16 > grid_->shared_bytes) {
    Die(*current_, absl::StrCat("has at ", Text(location), " an address outside shared memory"));
  }
}

void Runner::StartCopy(void* to, const void* from, bool reads, Location location) {
  CheckShared(to, location);
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0) {
    Die(*current_, absl::StrCat("copies at ", Text(location), " from what is not aligned"));
  }
  current_->copies.Start(to, from, reads);
}

void Runner::WaitForCopies(size_t groups, Location location) {
  current_->location = location;
  AsyncCopies& copies = current_->copies;
  const size_t arrived = copies.arrived().size();
  if (const char* const fault = copies.Wait(groups); fault != nullptr) {
    Die(*current_, absl::StrCat("waits at ", Text(location), " for a copy ", fault));
  }
  for (size_t i = arrived; i < copies.arrived().size(); ++i) Hide(copies.arrived()[i], true);
}

// ---- Products of warpgroups.

void Runner::Hide(const void* chunk, bool hidden) {
  const auto offset =
      static_cast<size_t>(static_cast<const unsigned char*>(chunk) - block_->shared.data());
  block_->is_hidden[offset / AsyncCopies::kBytes] = hidden ? 1 : 0;
}

void Runner::ShowToProducts() {
  for (const void* const chunk : current_->copies.arrived()) Hide(chunk, false);
  current_->copies.ForgetArrived();
}

uint32_t Runner::SharedAddress(const void* address) const {
  // Aligned like the address itself, up to what panels need.
  const auto begin = reinterpret_cast<uintptr_t>(block_->shared.data()) / 1024 * 1024;
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(address) - begin);
}

void Runner::DoProductSteps(void* const* steps) {
  Runner& runner = Get();
  const unsigned warp = runner.current_->warp;
  WarpProducts& products = runner.block_->products[warp];
  auto& first = *static_cast<ProductStep*>(steps[0]);
  const ProductMemory memory = {.data = runner.block_->shared.data(),
                                .bytes = runner.grid_->shared_bytes,
                                .address = runner.SharedAddress(runner.block_->shared.data()),
                                .is_hidden = runner.block_->is_hidden};
  switch (first.kind) {
    case ProductStep::Kind::kBegin:
      products.Begin();
      break;
    case ProductStep::Kind::kStart: {
      WarpProducts::Operands operands;
      for (unsigned lane = 0; lane < kLanesPerWarp; ++lane) {
        operands[lane] = static_cast<const ProductStep*>(steps[lane])->operands;
      }
      first.fault = products.Start(operands, warp % kWarpsPerGroup, memory);
      break;
    }
    case ProductStep::Kind::kCommit:
      products.Commit();
      break;
    case ProductStep::Kind::kWait:
      first.fault = products.Wait(first.groups, memory);
      break;
  }
}

void Runner::DoProductStep(ProductStep step, Location location) {
  WarpTogether(&DoProductSteps, &step, location);
  if (step.fault != nullptr) {
    Die(*current_, absl::StrCat("has at ", Text(location), " a product ", step.fault));
  }
}

void Runner::CheckProducts() const {
  for (size_t warp = 0; warp < block_->products.size(); ++warp) {
    if (block_->products[warp].under_way()) {
      Die(*current_, "ends before products of its block have been waited for");
    }
    if (block_->products[warp].trace() !=
        block_->products[warp / kWarpsPerGroup * kWarpsPerGroup].trace()) {
      Die(*current_, "ends when warps of a warpgroup have started different products");
    }
  }
}

}  // namespace stagecoach::testing::cuda
