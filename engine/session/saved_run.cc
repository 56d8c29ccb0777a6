#include "engine/session/saved_run.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/system_calls.h"
#include "base/text/units.h"
#include "engine/train/save_interval.h"

namespace stagecoach::engine {
namespace {

// Time between failures, from what a launcher says of those so far.
absl::Duration BetweenFailures(int restarts) {
  constexpr absl::Duration kUnknown = absl::Hours(24);
  const char* const started = std::getenv("STAGECOACH_STARTED");
  int64_t seconds = 0;
  if (started == nullptr || !absl::SimpleAtoi(started, &seconds) || restarts < 1) return kUnknown;
  return std::min(kUnknown, (absl::Now() - absl::FromUnixSeconds(seconds)) / restarts);
}

// Returns the name of the model as a part of a file name: "char_gpt" of examples/char_gpt.toml.
std::string ShortNameOf(const std::string& model) {
  constexpr size_t kMostLetters = 40;
  std::filesystem::path path = std::filesystem::path(model).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();  // of a folder
  if (path.extension() == ".toml" || path.extension() == ".safetensors") path.replace_extension();
  std::string name = path.filename().string().substr(0, kMostLetters);
  for (char& letter : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(letter)) && letter != '.' &&
        letter != '_') {
      letter = '-';
    }
  }
  return name;
}

// Adds the folders of checkpoints in this one, and in those that it has.
void AddCheckpointFolders(const std::filesystem::path& folder, int levels, int& looks,
                          std::vector<std::string>& found) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(
           folder.empty() ? "." : folder,
           std::filesystem::directory_options::skip_permission_denied, ignored)) {
    if (looks-- <= 0) return;
    if (!entry.is_directory(ignored) || entry.is_symlink(ignored)) continue;
    const std::string path = entry.path().lexically_normal().string();
    const absl::StatusOr<std::vector<FoundCheckpoint>> checkpoints = ListCheckpoints(path);
    if (checkpoints.ok() && !checkpoints->empty()) {
      found.push_back(path);
    } else if (levels > 1) {
      AddCheckpointFolders(entry.path(), levels - 1, looks, found);
    }
  }
}

}  // namespace

absl::StatusOr<std::optional<base::FileLock>> LockCheckpoints(const std::string& folder,
                                                              const Notices& notices) {
  if (folder.empty() || !base::Exists(folder)) return std::nullopt;
  if (!std::filesystem::is_directory(folder)) {
    return base::OutputError(absl::StrCat(folder, " is no folder"));
  }
  absl::StatusOr<base::FileLock> lock =
      base::FileLock::Take(absl::StrCat(folder, "/.lock"), base::DescribeProcess());
  if (lock.ok()) {
    base::RemoveLeftTemporaries(folder);  // of runs that were killed
    return *std::move(lock);
  }
  if (absl::IsFailedPrecondition(lock.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(folder, " belongs to a run that is still there (", lock.status().message(),
                     "): two in one folder would remove each other's checkpoints; end that one, or "
                     "name another folder"));
  }
  if (!absl::IsUnimplemented(lock.status())) return lock.status();
  notices.Tell(
      absl::StrCat(lock.status().message(), ": another run in this folder would not be noticed"));
  return std::nullopt;
}

std::vector<std::string> CheckpointFoldersNear(const std::string& folder) {
  constexpr int kMostLooks = 2000;
  int looks = kMostLooks;
  std::vector<std::string> found;
  AddCheckpointFolders(folder, 1, looks, found);
  std::filesystem::path above = std::filesystem::path(folder).lexically_normal();
  if (!above.has_filename()) above = above.parent_path();
  above = above.parent_path();
  while (!above.empty() && !base::Exists(above.string())) above = above.parent_path();
  AddCheckpointFolders(above, 2, looks, found);
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

absl::StatusOr<std::string> MakeRunFolder(const RunConfig& config, int64_t bytes, absl::Time now) {
  constexpr int kMostOfADay = 10'000;
  RETURN_IF_ERROR(base::MakeFolders(config.runs));
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(config.runs, error);
  if (!error && space.available < static_cast<uintmax_t>(bytes)) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a checkpoint takes ", base::FormatBytes(bytes), ", and the disk of ", config.runs, " has ",
        base::FormatBytes(static_cast<int64_t>(space.available)), " left"));
  }
  const std::string name =
      absl::StrCat(config.runs, "/", absl::FormatTime("%F", now, absl::LocalTimeZone()), "-",
                   ShortNameOf(NameOfModel(config)));
  for (int i = 1; i <= kMostOfADay; ++i) {
    const std::string path = i == 1 ? name : absl::StrCat(name, "-", i);
    if (mkdir(path.c_str(), 0777) == 0) return path;
    if (errno != EEXIST) return base::WriteError("make", path);
  }
  return absl::AlreadyExistsError(absl::StrCat(name, " and ", kMostOfADay - 1, " more exist"));
}

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path, const Notices& notices) {
  std::vector<absl::Status> passed_over;
  absl::StatusOr<Checkpoint> checkpoint = OpenNewest(path, passed_over);
  if (checkpoint.ok()) {
    for (const absl::Status& status : passed_over) {
      notices.Tell(absl::StrCat("passes over a checkpoint: ", status.message()));
    }
    return checkpoint;
  }
  return passed_over.empty() ? checkpoint.status() : passed_over.front();
}

absl::StatusOr<std::optional<Checkpoint>> FindResumePoint(const RunConfig& config,
                                                          bool is_replacement) {
  const std::string& folder = config.checkpoints;
  if (folder.empty()) return std::nullopt;
  if (base::Exists(absl::StrCat(folder, "/", kManifestName))) {
    return base::UsageError(
        absl::StrCat("--checkpoint: ", folder,
                     " is one of the checkpoints of a run: name the folder that it is in"));
  }
  if (!config.resume) {
    if (is_replacement || !base::Exists(folder)) return std::nullopt;
    ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> found, ListCheckpoints(folder));
    if (found.empty()) return std::nullopt;
    return absl::AlreadyExistsError(absl::StrCat(
        folder,
        " has checkpoints of a run: --resume continues it; for another run, name another "
        "folder"));
  }
  std::vector<absl::Status> passed_over;  // Restore finds them again, and they are reported then
  absl::StatusOr<Checkpoint> newest = OpenNewest(folder, passed_over);
  if (absl::IsNotFound(newest.status()) && passed_over.empty()) return std::nullopt;
  RETURN_IF_ERROR(newest.ok() || passed_over.empty() ? newest.status() : passed_over.front());
  return *std::move(newest);
}

std::string DescribeOtherData(const Manifest& manifest, const RunConfig& options,
                              const TrainingRun& run) {
  const DataFingerprint& was = manifest.data;
  const DataFingerprint& is = run.data.fingerprint;
  if (was == DataFingerprint() || is == DataFingerprint() || was == is) return "";
  const bool is_test = was.train == is.train;
  return absl::StrCat(is_test ? TestDataOf(options) : DataOf(options), " is not what it was when ",
                      CheckpointName(manifest.step), " was saved",
                      is_test ? " (its test set)" : "");
}

AutomaticSaves::AutomaticSaves(Rendezvous* rendezvous, absl::Duration deadline, int restarts,
                               bool has_interval, std::function<bool()> wants_save)
    : rendezvous_(rendezvous),
      deadline_(deadline),
      restarts_(restarts),
      has_interval_(has_interval),
      wants_save_(std::move(wants_save)),
      last_(absl::Now()),
      interval_(absl::Seconds(10)) {  // the first save shows what one costs
  StartVote();
}

bool AutomaticSaves::IsWanted() {
  if (wants_save_ != nullptr && wants_save_()) is_asked_ = true;
  if (is_asked_ || has_interval_) return is_asked_;
  // One process decides: clocks differ.
  const bool decides = rendezvous_ == nullptr || rendezvous_->rank() == 0;
  return decides && absl::Now() - last_ >= interval_;
}

void AutomaticSaves::StartVote() {
  vote_.emplace(rendezvous_, Vote::Options{.wanted = [this] { return IsWanted() ? 1 : 0; },
                                           .deadline = deadline_});
}

absl::StatusOr<bool> AutomaticSaves::Wanted() {
  absl::StatusOr<bool> passes = vote_->Passes();
  if (!passes.ok() || !*passes) return passes;
  last_ = absl::Now();
  is_asked_ = false;
  StartVote();
  return true;
}

void AutomaticSaves::Saved(const SaveReport& save) {
  interval_ = SaveInterval(save.blocked, BetweenFailures(restarts_));
}

CheckpointOptions CheckpointOptionsOf(const RunConfig& config, const TrainingRun& run,
                                      std::vector<SavedOption> options, AutomaticSaves& automatic) {
  CheckpointOptions checkpoints;
  if (config.checkpoints.empty()) return checkpoints;
  checkpoints.folder = config.checkpoints;
  checkpoints.every_steps = config.saves_at_end_only ? 0 : config.every_steps.value_or(0);
  checkpoints.wanted = [&automatic] { return automatic.Wanted(); };
  checkpoints.save.retention = {.newest = config.kept_checkpoints,
                                .every_steps = config.kept_every_steps,
                                .best_by = config.best_by};
  checkpoints.save.program = config.program;
  checkpoints.save.model_source = run.model_text;
  checkpoints.save.options = std::move(options);
  return checkpoints;
}

}  // namespace stagecoach::engine
