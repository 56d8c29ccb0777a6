#include "tools/stagecoach/terminal/stop_signal.h"

#include <signal.h>

#include <atomic>

namespace stagecoach::tools {
namespace {

// The first signal that asked to stop, and the last hang-up; 0: none.
std::atomic<int> stopped_by = 0;
std::atomic<int> hung_up_by = 0;
std::atomic<int> saves_requested = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler stores them");

constexpr int kHangUps[] = {SIGPIPE, SIGHUP};

}  // namespace

void NoteStop(int signal) {
  if (signal == SIGPIPE || signal == SIGHUP) hung_up_by.store(signal, std::memory_order_relaxed);
  int none = 0;
  stopped_by.compare_exchange_strong(none, signal, std::memory_order_relaxed);
}

void StopOnSignals() {
  struct sigaction action = {};
  action.sa_handler = NoteStop;
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void StopOnHangUps() {
  struct sigaction action = {}, before = {};
  action.sa_handler = NoteStop;
  action.sa_flags = SA_RESTART;  // each line that nobody reads raises it again
  for (const int hang_up : kHangUps) {
    sigaction(hang_up, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(hang_up, &action, nullptr);  // as under nohup
  }
}

void SaveOnSignal() {
  struct sigaction action = {};
  action.sa_handler = [](int) { saves_requested.store(1, std::memory_order_relaxed); };
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, nullptr);
}

bool SaveRequested() { return saves_requested.exchange(0, std::memory_order_relaxed) != 0; }

StopOnHangUp::~StopOnHangUp() {
  if (!HasHungUp()) return;
  const int hang_up = hung_up_by.load(std::memory_order_relaxed);
  signal(hang_up, SIG_DFL);
  raise(hang_up);
}

bool StopRequested() { return StopSignal() != 0; }
int StopSignal() { return stopped_by.load(std::memory_order_relaxed); }
bool HasHungUp() { return hung_up_by.load(std::memory_order_relaxed) != 0; }

ExitStatus StatusOfStop(int signal) {
  switch (signal) {
    case SIGHUP:
      return kExitHungUp;
    case SIGPIPE:
      return kExitBrokenPipe;
    case SIGTERM:
      return kExitTerminated;
    default:
      return kExitInterrupted;
  }
}

}  // namespace stagecoach::tools
