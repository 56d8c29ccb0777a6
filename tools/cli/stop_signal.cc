#include "tools/cli/stop_signal.h"

#include <signal.h>

#include <atomic>

namespace stagecoach::tools {
namespace {

std::atomic<bool> stop_requested = false;
std::atomic<int> hung_up_by = 0;  // a signal
static_assert(std::atomic<bool>::is_always_lock_free && std::atomic<int>::is_always_lock_free,
              "a signal handler stores them");

constexpr int kHangUps[] = {SIGPIPE, SIGHUP};

}  // namespace

void StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { stop_requested.store(true, std::memory_order_relaxed); };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

StopOnHangUp::StopOnHangUp() {
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int signal) {
    hung_up_by.store(signal, std::memory_order_relaxed);
    stop_requested.store(true, std::memory_order_relaxed);
  };
  action.sa_flags = SA_RESTART;
  for (const int hang_up : kHangUps) {
    sigaction(hang_up, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(hang_up, &action, nullptr);  // as nohup has it
  }
}

StopOnHangUp::~StopOnHangUp() {
  if (!has_hung_up()) return;
  const int hang_up = hung_up_by.load(std::memory_order_relaxed);
  signal(hang_up, SIG_DFL);
  raise(hang_up);
}

bool StopOnHangUp::has_hung_up() const { return hung_up_by.load(std::memory_order_relaxed) != 0; }

bool StopRequested() { return stop_requested.load(std::memory_order_relaxed); }

}  // namespace stagecoach::tools
