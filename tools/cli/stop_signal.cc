#include "tools/cli/stop_signal.h"

#include <signal.h>

#include <atomic>

namespace stagecoach::tools {
namespace {

// Signals.
std::atomic<int> stopped_by = 0;
std::atomic<int> hung_up_by = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler stores them");

void Stop(int signal) {
  int none = 0;
  stopped_by.compare_exchange_strong(none, signal, std::memory_order_relaxed);
}

constexpr int kHangUps[] = {SIGPIPE, SIGHUP};

}  // namespace

void StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = Stop;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

StopOnHangUp::StopOnHangUp() {
  struct sigaction action = {}, before = {};
  action.sa_handler = [](int signal) {
    hung_up_by.store(signal, std::memory_order_relaxed);
    Stop(signal);
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

bool StopRequested() { return stopped_by.load(std::memory_order_relaxed) != 0; }

ExitStatus StatusOfStop() {
  return stopped_by.load(std::memory_order_relaxed) == SIGTERM ? kExitTerminated : kExitInterrupted;
}

}  // namespace stagecoach::tools
