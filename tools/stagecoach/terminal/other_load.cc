#include "tools/stagecoach/terminal/other_load.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/system/file.h"

namespace stagecoach::tools {
namespace {

constexpr double kShareToTell = 0.1;
constexpr absl::Duration kLeastTime = absl::Milliseconds(200);
constexpr int64_t kMaxStatBytes = int64_t{1} << 20;

std::set<int> OwnProcessors() {
  cpu_set_t allowed;
  std::set<int> processors;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &allowed)) processors.insert(i);
  }
  return processors;
}

}  // namespace

int64_t BusyTicks(const std::string& proc_stat, const std::set<int>& processors) {
  // The columns of a line "cpu0 10132153 290696 ...", by proc(5): user, nice, system, idle, iowait,
  // irq, softirq, steal.
  constexpr std::array<size_t, 6> kBusy = {1, 2, 3, 6, 7, 8};
  int64_t ticks = 0;
  for (absl::string_view line : absl::StrSplit(proc_stat, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    int processor = 0;
    if (words.size() <= kBusy.back() || !absl::ConsumePrefix(&line, "cpu") ||
        !absl::SimpleAtoi(words[0].substr(3), &processor) || processors.count(processor) == 0) {
      continue;
    }
    for (const size_t column : kBusy) {
      int64_t value = 0;
      if (absl::SimpleAtoi(words[column], &value)) ticks += value;
    }
  }
  return ticks;
}

double ShareOfOthers(const LoadSample& start, const LoadSample& end, int64_t processors) {
  const absl::Duration time = end.time - start.time;
  if (time < kLeastTime || processors < 1) return 0.0;
  const absl::Duration others = (end.busy - start.busy) - (end.own - start.own);
  return std::clamp(absl::FDivDuration(others, time * processors), 0.0, 1.0);
}

OtherLoad::OtherLoad() : processors_(OwnProcessors()), start_(Now()) {}

LoadSample OtherLoad::Now() const {
  const absl::StatusOr<std::string> stat = base::ReadFile("/proc/stat", kMaxStatBytes);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return {
      .time = absl::Now(),
      .busy = absl::Milliseconds(10) * BusyTicks(stat.value_or(""), processors_),
      .own = absl::DurationFromTimeval(usage.ru_utime) + absl::DurationFromTimeval(usage.ru_stime)};
}

double OtherLoad::Share() const {
  return ShareOfOthers(start_, Now(), static_cast<int64_t>(processors_.size()));
}

std::string DescribeOtherLoad(double share) {
  if (share <= kShareToTell) return "";
  return absl::StrFormat("other programs took %.0f %% of the processors meanwhile", 100 * share);
}

}  // namespace stagecoach::tools
