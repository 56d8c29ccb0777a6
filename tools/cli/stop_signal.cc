#include "tools/cli/stop_signal.h"

#include <signal.h>

#include <atomic>

namespace stagecoach::tools {
namespace {

std::atomic<bool> stop_requested = false;
static_assert(std::atomic<bool>::is_always_lock_free, "a signal handler stores it");

}  // namespace

void StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested.store(true, std::memory_order_relaxed); };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

bool StopRequested() { return stop_requested.load(std::memory_order_relaxed); }

}  // namespace stagecoach::tools
