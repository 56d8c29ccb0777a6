#include "engine/train/recovery/state_snapshot.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

// The text of a process that has nothing.
constexpr absl::string_view kNothing = "-";

// Parses "17 1": the process has done 17 steps and may complete one more.
absl::StatusOr<StepProgress> ParseStanding(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, ' ');
  StepProgress standing;
  if (words.size() != 2 || !absl::SimpleAtoi(words[0], &standing.steps)) {
    return absl::AbortedError("the processes disagree on how to recover");
  }
  standing.may_complete = words[1] == "1";
  return standing;
}

}  // namespace

absl::StatusOr<int64_t> AgreeOnStep(Rendezvous& rendezvous, const std::optional<StepProgress>& own,
                                    absl::Duration deadline) {
  const std::string text = own.has_value()
                               ? absl::StrCat(own->steps, " ", own->may_complete ? 1 : 0)
                               : std::string(kNothing);
  ASSIGN_OR_RETURN(const std::vector<std::string> all,
                   rendezvous.AllGather(text, base::Deadline::After(deadline)));
  std::vector<StepProgress> standings;
  int64_t steps = -1;
  for (const std::string& theirs : all) {
    if (theirs == kNothing) continue;
    ASSIGN_OR_RETURN(standings.emplace_back(), ParseStanding(theirs));
    steps = std::max(steps, standings.back().steps);
  }
  if (standings.empty()) return absl::AbortedError("no process is left of the run");
  for (const StepProgress& standing : standings) {
    if (standing.steps == steps || (standing.may_complete && standing.steps == steps - 1)) continue;
    return absl::AbortedError(absl::StrCat("a process has done ", standing.steps,
                                           " steps, and cannot come to step ", steps));
  }
  return steps;
}

}  // namespace stagecoach::engine
