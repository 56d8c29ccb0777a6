#include "kernels/cpu/runtime/cpu_stream.h"

#include <cstring>
#include <system_error>

#include "base/system/futex.h"
#include "kernels/cpu/runtime/threads.h"

namespace stagecoach::kernels {

CpuStream::CpuStream(int threads) : queue_(PrepareComputeThread) {
  helpers_.reserve(static_cast<size_t>(threads) - 1);
  try {
    for (int slot = 1; slot < threads; ++slot) {
      helpers_.emplace_back([this, slot] { Help(slot); });
    }
  } catch (const std::system_error&) {  // the system allows no more
    EndHelpers();
    throw;
  }
}

CpuStream::~CpuStream() {
  queue_.End();  // its jobs use the helpers
  EndHelpers();
}

void CpuStream::EndHelpers() {
  stopping_.store(true, std::memory_order_relaxed);
  round_.fetch_add(1, std::memory_order_release);
  base::WakeAll(round_);
  for (std::thread& helper : helpers_) helper.join();
}

absl::Status CpuStream::Copy(void* to, const void* from, int64_t bytes) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status CpuStream::Replay(Recording& /*recording*/, absl::FunctionRef<absl::Status()> issue) {
  return issue();
}

absl::Status CpuStream::Report(int32_t position) {
  reported_.store(position, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status CpuStream::WaitUntil(absl::FunctionRef<bool()> /*is_there*/,
                                  absl::FunctionRef<absl::Status()> /*poll*/) {
  return absl::OkStatus();
}

absl::Status CpuStream::Finish(base::Deadline /*deadline*/,
                               absl::FunctionRef<absl::Status()> poll) {
  return poll();
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
