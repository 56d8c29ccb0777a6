#include "engine/train/measure/step_time_monitor.h"

#include <utility>

#include "absl/time/time.h"

namespace stagecoach::engine {

StepTimeMonitor::StepTimeMonitor(RankGroup& group, std::function<void(const std::string&)> tell)
    : group_(group),
      tell_(std::move(tell)),
      slow_(group.names(), group.mesh().num_columns()),
      meters_(group.local_devices().size()),
      step_times_(static_cast<size_t>(group.mesh().num_devices())) {}

void StepTimeMonitor::After(int64_t step, int64_t step_ns,
                            absl::FunctionRef<int64_t(int device)> compute_ns) {
  bool is_new = false;
  for (size_t i = 0; i < meters_.size(); ++i) {
    const int device = group_.local_devices()[i];
    if (!meters_[i].Add(step, compute_ns(device), step_ns)) continue;
    is_new = true;
    step_times_[static_cast<size_t>(device)] = meters_[i].step_time();
  }
  const std::optional<StepTime>& own =
      step_times_[static_cast<size_t>(group_.local_devices().front())];
  if (!is_new || !own.has_value()) return;
  if (group_.is_among_processes()) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_exchange_) return;
    next_exchange_ = now + absl::ToChronoNanoseconds(group_.pace_interval());
    const std::vector<std::string> texts = group_.ShowPace(ToText(*own));
    for (size_t device = 0; device < texts.size(); ++device) {
      step_times_[device] = StepTimeFromText(texts[device]);
    }
    if (texts.empty()) return;
  }
  for (const std::string& sentence : slow_.Judge(step_times_)) tell_(sentence);
}

}  // namespace stagecoach::engine
