#include "base/system/run_with_timeout.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace stagecoach::base {
namespace {

struct Call {
  std::string name;
  std::promise<void> promise;
  std::atomic<bool> returned{false};
};

class LeftBehind {
 public:
  static LeftBehind& Get() {
    static auto* const left_behind = new LeftBehind;  // never destroyed: threads may outlive it
    return *left_behind;
  }

  void Add(std::shared_ptr<const Call> call) {
    MutexLock lock(mutex_);
    // Registered last, so it runs first: before the destructors of static objects, which the
    // threads may use.
    if (calls_.empty()) on_exit(&LeftBehind::AtExit, nullptr);
    calls_.push_back(std::move(call));
  }

 private:
  static void AtExit(int status, void* /*unused*/) {
    bool any = false;
    LeftBehind& self = Get();
    MutexLock lock(self.mutex_);
    for (const std::shared_ptr<const Call>& call : self.calls_) {
      if (call->returned.load()) continue;
      any = true;
      std::fprintf(stderr, "stagecoach: %s has not returned; the process ends without it\n",
                   call->name.c_str());
    }
    if (!any) return;
    std::fflush(nullptr);
    _exit(status);
  }

  Mutex mutex_;
  std::vector<std::shared_ptr<const Call>> calls_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

bool RunWithTimeout(absl::Duration limit, const std::string& name, std::function<void()> work) {
  const auto call = std::make_shared<Call>();
  call->name = name;
  const std::future<void> returned = call->promise.get_future();
  std::thread thread([call, work = std::move(work)] {
    work();
    call->returned.store(true);
    call->promise.set_value();
  });
  if (returned.wait_for(absl::ToChronoNanoseconds(limit)) == std::future_status::ready) {
    thread.join();
    return true;
  }
  thread.detach();
  LeftBehind::Get().Add(call);
  return false;
}

}  // namespace stagecoach::base
