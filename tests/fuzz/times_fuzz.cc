#include "schedule/generators/generators.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"
#include "tests/fuzz/support/fuzz.h"
#include "tests/fuzz/support/memory_file.h"
#include "tools/stagecoach/simulate/times_file.h"

namespace stagecoach::fuzz {

// Whatever can be read is simulated, or refused then.
absl::Status Try(absl::string_view input) {
  static const MemoryFile file;
  file.Write(input);
  const absl::StatusOr<schedule::Costs> costs = tools::ReadTimesFile(file.path());
  if (!costs.ok()) return costs.status();
  const int stages = static_cast<int>(costs->stages.size());
  const auto schedule = schedule::Generate("1f1b", {.ranks = stages, .micro_batches = 2});
  if (!schedule.ok()) return schedule.status();
  return schedule::Simulate(*schedule, *costs).status();
}

}  // namespace stagecoach::fuzz
