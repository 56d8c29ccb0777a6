#include "tools/stagecoach/replay/replay_checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/terminal/messages.h"

namespace stagecoach::tools {
namespace {

// One that can be opened, and how many steps are left after it.
struct Candidate {
  engine::Checkpoint checkpoint;
  int64_t left = 0;
};

absl::StatusOr<int64_t> CountOf(const engine::Manifest& manifest, absl::string_view option) {
  constexpr int64_t kMost = int64_t{1} << 31;  // of either: their product stays a number
  for (const engine::SavedOption& saved : manifest.options) {
    int64_t count = 0;
    if (PresentName(saved.name) != option) continue;
    if (absl::SimpleAtoi(saved.value, &count) && count >= 0 && count <= kMost) return count;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the checkpoint does not say how its run continues (", option,
                   "), since it was not saved by this program"));
}

void TellOfDamage(const absl::Status& status) {
  PrintNotice(absl::StrCat("passes over a checkpoint: ", status.message()));
}

absl::StatusOr<Candidate> OpenCandidate(const std::string& path) {
  ASSIGN_OR_RETURN(engine::Checkpoint checkpoint, engine::Checkpoint::Open(path));
  ASSIGN_OR_RETURN(const int64_t left, StepsLeft(checkpoint.manifest()));
  return Candidate{std::move(checkpoint), left};
}

// From the one to be preferred on.
absl::Status SortByPreference(std::vector<Candidate>& newest_first, int64_t steps) {
  const auto fewer = std::stable_partition(
      newest_first.begin(), newest_first.end(),
      [steps](const Candidate& candidate) { return candidate.left >= steps; });
  std::reverse(fewer, newest_first.end());
  const auto none =
      std::stable_partition(newest_first.begin(), newest_first.end(),
                            [](const Candidate& candidate) { return candidate.left > 0; });
  newest_first.erase(none, newest_first.end());
  if (!newest_first.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "no step is left: this is the end of the run; name an earlier checkpoint, which "
      "train --keep-checkpoints and --keep-every keep");
}

absl::StatusOr<Candidate> ChooseCheckpoint(const std::string& path, int64_t steps) {
  ASSIGN_OR_RETURN(const std::vector<std::string> paths, engine::CandidatesIn(path));
  const bool is_named = paths.size() == 1 && paths.front() == path;
  std::vector<Candidate> candidates;
  absl::Status damage;
  for (const std::string& candidate : paths) {
    absl::StatusOr<Candidate> opened = OpenCandidate(candidate);
    if (opened.ok()) {
      candidates.push_back(*std::move(opened));
    } else if (is_named || absl::IsFailedPrecondition(opened.status())) {
      return opened.status();
    } else {
      TellOfDamage(opened.status());
      damage.Update(opened.status());
    }
  }
  if (candidates.empty()) return damage;
  RETURN_IF_ERROR(SortByPreference(candidates, steps));
  for (Candidate& candidate : candidates) {
    // Of one that was named, what reads it says so.
    const absl::Status whole = is_named ? absl::OkStatus() : candidate.checkpoint.Verify();
    if (whole.ok()) return std::move(candidate);
    TellOfDamage(whole);
    damage.Update(whole);
  }
  return damage;
}

}  // namespace

absl::StatusOr<int64_t> StepsLeft(const engine::Manifest& manifest) {
  const bool has_steps =
      std::any_of(manifest.options.begin(), manifest.options.end(),
                  [](const engine::SavedOption& option) { return option.name == "--steps"; });
  if (has_steps) {
    ASSIGN_OR_RETURN(const int64_t steps, CountOf(manifest, "--steps"));
    return std::max<int64_t>(0, steps - manifest.step);
  }
  ASSIGN_OR_RETURN(const int64_t epochs, CountOf(manifest, "--epochs"));
  ASSIGN_OR_RETURN(const int64_t rows, CountOf(manifest, "--train-samples"));
  const int64_t batch = manifest.plan.plan.batch_rows();
  const engine::DataPosition& position = manifest.position;
  if (position.epoch > epochs) return 0;
  // As Fit has it: the rows of this epoch that make no batch are left out.
  const int64_t in_epoch = std::max<int64_t>(0, rows - position.rows) / batch;
  return in_epoch + (epochs - position.epoch) * (rows / batch);
}

absl::StatusOr<ReplayStart> FindReplayStart(const std::string& path, int64_t steps) {
  ASSIGN_OR_RETURN(Candidate chosen, ChooseCheckpoint(path, steps));
  const int64_t first = chosen.checkpoint.manifest().step;
  const int64_t count = std::min(steps, chosen.left);
  std::error_code error;
  const std::filesystem::path itself = std::filesystem::canonical(chosen.checkpoint.path(), error);
  ReplayStart start = {.checkpoint = std::move(chosen.checkpoint), .steps = count};
  if (error) return start;
  ASSIGN_OR_RETURN(std::vector<engine::FoundCheckpoint> found,
                   engine::ListCheckpoints(itself.parent_path().string()));
  for (engine::FoundCheckpoint& other : found) {
    if (other.step > first && other.step <= first + count) start.later.push_back(std::move(other));
  }
  return start;
}

}  // namespace stagecoach::tools
