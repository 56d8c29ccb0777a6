#include "engine/checkpoint/retention.h"

#include <cerrno>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/system/system_calls.h"
#include "engine/checkpoint/checkpoint.h"

namespace stagecoach::engine {
namespace {

// Returns the entries of a folder that are folders or, with `folders` false, that are not. Links
// are not.
std::vector<std::string> Entries(const std::string& folder, bool folders) {
  std::vector<std::string> names;
  std::error_code error;
  std::filesystem::directory_iterator entries(folder, error);
  for (; !error && entries != std::filesystem::directory_iterator(); entries.increment(error)) {
    if (base::IsFolder(entries->path()) == folders) {
      names.push_back(entries->path().filename().string());
    }
  }
  return names;
}

// Saves create no folders in a checkpoint.
bool HasFolders(const std::string& path) { return !Entries(path, true).empty(); }

// Removes a folder that is no checkpoint, with the files in it.
absl::Status RemoveFolder(base::SystemCalls& calls, const std::string& path) {
  if (!base::IsFolder(path) || HasFolders(path)) return absl::OkStatus();
  for (const std::string& name : Entries(path, false)) {
    const std::string file = absl::StrCat(path, "/", name);
    if (calls.RemoveFile(file.c_str()) != 0 && errno != ENOENT) {
      return base::WriteError("remove", file);
    }
  }
  if (calls.RemoveFolder(path.c_str()) != 0 && errno != ENOENT) {
    return base::WriteError("remove", path);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status RemoveCheckpoint(base::SystemCalls& calls, const std::string& folder,
                              const std::string& name) {
  const std::string path = absl::StrCat(folder, "/", name);
  if (HasFolders(path)) return absl::OkStatus();
  const std::string removing = absl::StrCat(folder, "/", kRemovingPrefix, name);
  // Removes the remains of an interrupted removal.
  RETURN_IF_ERROR(RemoveFolder(calls, removing));
  if (calls.Rename(path.c_str(), removing.c_str()) != 0) return base::WriteError("remove", path);
  return RemoveFolder(calls, removing);
}

absl::Status RemoveLeftovers(base::SystemCalls& calls, const std::string& folder,
                             const std::string& own) {
  for (const std::string& name : Entries(folder, true)) {
    if (name == own) continue;
    if (!absl::StartsWith(name, kSavingPrefix) && !absl::StartsWith(name, kRemovingPrefix))
      continue;
    RETURN_IF_ERROR(RemoveFolder(calls, absl::StrCat(folder, "/", name)));
  }
  return absl::OkStatus();
}

absl::Status RemoveOthers(base::SystemCalls& calls, const std::string& folder,
                          const Retention& retention) {
  ASSIGN_OR_RETURN(const std::vector<FoundCheckpoint> found, ListCheckpoints(folder));
  struct Whole {
    int64_t step;
    double value;  // of the metric; NaN if it is not known
  };
  std::vector<Whole> whole;
  for (const FoundCheckpoint& candidate : found) {
    const absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(candidate.path);
    if (!checkpoint.ok()) continue;
    const std::optional<Metrics>& metrics = checkpoint->manifest().position.metrics;
    whole.push_back(
        {candidate.step, metrics.has_value() ? metrics->ValueOf(retention.best_by) : std::nan("")});
  }
  std::optional<Whole> best;
  for (const Whole& candidate : whole) {
    if (retention.best_by.empty() || std::isnan(candidate.value)) continue;
    if (!best.has_value() || IsBetter(retention.best_by, candidate.value, best->value)) {
      best = candidate;
    }
  }
  for (size_t i = 0; i + static_cast<size_t>(retention.newest) < whole.size(); ++i) {
    const int64_t step = whole[i].step;
    if (best.has_value() && best->step == step) continue;
    if (retention.every_steps > 0 && step % retention.every_steps == 0) continue;
    RETURN_IF_ERROR(RemoveCheckpoint(calls, folder, CheckpointName(step)));
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
