// Measures how fast schedules are lowered, proved and simulated on one core: the figures of
// docs/performance.md. Prints the median of several rounds.

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <vector>

#include "base/check.h"
#include "bench/micro/median_seconds.h"
#include "schedule/generators/generators.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"
#include "schedule/transforms/lowering.h"
#include "schedule/verify/validator.h"

namespace stagecoach::schedule {
namespace {

using bench::MedianSeconds;

size_t CountActions(const Schedule& schedule) {
  size_t actions = 0;
  for (const std::vector<Action>& list : schedule.actions) actions += list.size();
  return actions;
}

void Measure(const char* name, const ScheduleShape& shape) {
  const Schedule compute = Generate(name, shape).value();
  const Schedule lowered = Lower(compute).value();
  const Costs costs =
      UniformCosts(compute.rank_of_stage, {18'522'000, 18'086'000, 9'337'000}, 601'000);
  const double actions = static_cast<double>(CountActions(lowered));
  const double lower = MedianSeconds([&] { STAGECOACH_CHECK_OK(Lower(compute)); });
  const double prove = MedianSeconds([&] { STAGECOACH_CHECK_OK(Validate(lowered)); });
  const double buffered =
      MedianSeconds([&] { STAGECOACH_CHECK_OK(SimulateDurations(lowered, costs)); });
  const double rendezvous = MedianSeconds(
      [&] { STAGECOACH_CHECK_OK(SimulateDurations(lowered, costs, Sends::kRendezvous)); });
  std::printf(
      "%-12s %4d x %4d  %9.0f actions  lower %.3f s  prove %.3f s  "
      "simulate %.1f M/s buffered, %.1f M/s rendezvous\n",
      name, shape.ranks, shape.micro_batches, actions, lower, prove, actions / buffered / 1e6,
      actions / rendezvous / 1e6);
}

}  // namespace
}  // namespace stagecoach::schedule

int main() {
  using stagecoach::schedule::Measure;
  Measure("1f1b", {8, 64});
  Measure("1f1b", {64, 1024});
  Measure("1f1b", {256, 4096});
  Measure("zb-v", {64, 1024});
}
