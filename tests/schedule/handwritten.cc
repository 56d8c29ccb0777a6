#include "tests/schedule/handwritten.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace stagecoach::schedule {
Schedule FromText(const std::vector<int>& rank_of_stage, int num_micro_batches,
                  const std::vector<std::string>& lists) {
  Schedule schedule;
  schedule.name = "handwritten";
  schedule.num_micro_batches = num_micro_batches;
  for (const int rank : rank_of_stage) schedule.rank_of_stage.emplace_back(rank);
  for (const std::string& list : lists) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    for (const absl::string_view word : absl::StrSplit(list, ' ', absl::SkipEmpty())) {
      actions.push_back(ParseCode(word).value());
    }
  }
  return schedule;
}

std::string ToText(const std::vector<Action>& list) {
  return absl::StrJoin(list, " ", [](std::string* text, const Action& action) {
    absl::StrAppend(text, ToCode(action));
  });
}

Schedule HandwrittenH1() {
  return FromText({0, 1}, 3,
                  {"F0.0 F0.1 B0.0 W0.0 F0.2 B0.1 W0.1 B0.2 W0.2",
                   "F1.0 B1.0 F1.1 B1.1 W1.0 F1.2 B1.2 W1.1 W1.2"});
}

Schedule HandwrittenV() {
  return FromText({0, 1, 1, 0}, 2,
                  {"F0.0 F0.1 F3.0 BW3.0 F3.1 BW3.1 BW0.0 BW0.1",
                   "F1.0 F2.0 F1.1 F2.1 B2.0 B1.0 W2.0 B2.1 B1.1 W1.0 W2.1 W1.1"});
}

StageMemory TypicalStage(bool first) {
  StageMemory memory;
  memory.input_bytes = 256;
  memory.output_bytes = 512;
  memory.stash_bytes = 1024;
  memory.weight_stash_bytes = 768;
  memory.gradient_stash_bytes = 256;
  memory.output_gradient_bytes = 512;
  memory.input_gradient_bytes = first ? 0 : 256;
  return memory;
}

std::vector<StageMemory> TypicalStages(const Schedule& schedule) {
  std::vector<StageMemory> stages;
  for (int s = 0; s < schedule.num_stages(); ++s) stages.push_back(TypicalStage(s == 0));
  return stages;
}

}  // namespace stagecoach::schedule
