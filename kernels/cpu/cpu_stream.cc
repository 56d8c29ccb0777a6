#include "kernels/cpu/cpu_stream.h"

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/futex.h"
#include "kernels/cpu/threads.h"

namespace stagecoach::kernels {

CpuStream::CpuStream(int threads) {
  helpers_.reserve(static_cast<size_t>(threads) - 1);
  for (int slot = 1; slot < threads; ++slot) {
    helpers_.emplace_back([this, slot] { Help(slot); });
  }
  worker_ = std::thread([this] { Work(); });
}

CpuStream::~CpuStream() {
  // An entry without job and event ends the worker, after everything that was submitted before it.
  while (!Push(Entry{}).ok()) std::this_thread::yield();
  worker_.join();
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  base::WakeAll(round_);
  for (std::thread& helper : helpers_) helper.join();
}

absl::Status CpuStream::Submit(Job& job) { return Push(Entry{.job = &job}); }

absl::Status CpuStream::Record(Event& event) { return Push(Entry{.event = &event}); }

absl::Status CpuStream::Push(const Entry& entry) {
  base::MutexLock lock(push_mutex_);
  const uint32_t position = pushed_.load(std::memory_order_relaxed);
  if (position - popped_.load(std::memory_order_acquire) == kMaxPending) {
    return absl::ResourceExhaustedError(
        absl::StrCat("more than ", kMaxPending, " jobs wait in the stream"));
  }
  Entry& placed = ring_[position % kMaxPending];
  placed = entry;
  // Only now is it certain that the mark will be reached.
  if (placed.event != nullptr) placed.mark = StartMark(*placed.event);
  pushed_.store(position + 1, std::memory_order_release);
  base::WakeAll(pushed_);
  return absl::OkStatus();
}

void CpuStream::Work() {
  PrepareComputeThread();
  for (uint32_t position = 0;; ++position) {
    static_cast<void>(base::WaitWhileEqual(pushed_, position, base::Deadline::Never()));
    const Entry entry = ring_[position % kMaxPending];
    popped_.store(position + 1, std::memory_order_release);
    if (entry.job != nullptr) {
      entry.job->Run();
    } else if (entry.event != nullptr) {
      Reach(*entry.event, entry.mark);
    } else {
      return;
    }
  }
}

void CpuStream::ParallelFor(int tiles, TileFunction function) {
  if (helpers_.empty() || tiles == 1) {
    for (int tile = 0; tile < tiles; ++tile) function(tile, 0);
    return;
  }
  function_ = &function;
  tiles_ = tiles;
  next_tile_.store(0, std::memory_order_relaxed);
  busy_helpers_.store(static_cast<uint32_t>(helpers_.size()), std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  base::WakeAll(round_);
  RunTiles(0);
  while (const uint32_t busy = busy_helpers_.load(std::memory_order_acquire)) {
    static_cast<void>(base::WaitWhileEqual(busy_helpers_, busy, base::Deadline::Never()));
  }
}

void CpuStream::Help(int slot) {
  PrepareComputeThread();
  for (uint32_t round = 0;; ++round) {
    static_cast<void>(base::WaitWhileEqual(round_, round, base::Deadline::Never()));
    if (stopping_.load(std::memory_order_relaxed)) return;
    RunTiles(slot);
    if (busy_helpers_.fetch_sub(1, std::memory_order_acq_rel) == 1) base::WakeAll(busy_helpers_);
  }
}

void CpuStream::RunTiles(int slot) {
  for (;;) {
    const int tile = next_tile_.fetch_add(1, std::memory_order_relaxed);
    if (tile >= tiles_) return;
    (*function_)(tile, slot);
  }
}

}  // namespace stagecoach::kernels
