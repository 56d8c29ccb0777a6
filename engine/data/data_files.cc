#include "engine/data/data_files.h"

#include <glob.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/data/file_name.h"

namespace stagecoach::engine {
namespace {

constexpr absl::string_view kShardEndings[] = {".csv", ".jsonl", ".txt", ".bin", ".npy"};

bool IsDescription(absl::string_view name) {
  return absl::StartsWith(name, ".") || absl::StartsWith(name, "_") ||
         absl::EndsWith(name, ".json") || absl::EndsWith(name, ".md");
}

// Returns whether a name has a meaning in a folder of another format.
bool IsReserved(absl::string_view name) {
  static constexpr absl::string_view kParts[] = {"train",   "val",    "x_train",
                                                 "y_train", "x_test", "y_test"};
  if (!HasEnding(name, ".bin") && !HasEnding(name, ".npy")) return false;
  const absl::string_view stem = name.substr(0, name.find('.'));
  return std::find(std::begin(kParts), std::end(kParts), stem) != std::end(kParts) ||
         absl::StartsWith(stem, "data_batch_") || stem == "test_batch";
}

// Returns the shards' files; none if that is no folder of them.
std::vector<std::string> ShardsIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  absl::string_view common;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (IsDescription(name)) continue;
    const auto* const ending =
        std::find_if(std::begin(kShardEndings), std::end(kShardEndings),
                     [&](absl::string_view known) { return HasEnding(name, known); });
    // The first stranger ends the search: folders of images have many files.
    if (ending == std::end(kShardEndings) || (!common.empty() && common != *ending) ||
        IsReserved(name) || entry->is_directory()) {
      return {};
    }
    common = *ending;
    names.push_back(name);
  }
  if (error) return {};
  std::sort(names.begin(), names.end());
  for (std::string& name : names) {
    name = absl::StrCat(folder, absl::EndsWith(folder, "/") ? "" : "/", name);
  }
  return names;
}

bool IsPattern(absl::string_view name) {
  return name.find_first_of("*?[") != absl::string_view::npos;
}

absl::StatusOr<std::vector<std::string>> Match(const std::string& pattern) {
  glob_t found = {};
  glob(pattern.c_str(), GLOB_NOSORT, nullptr, &found);
  std::vector<std::string> names(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  // A locale would sort in another order.
  std::sort(names.begin(), names.end());
  if (!names.empty()) return names;
  return base::DataError(absl::StrCat(pattern, ": no file matches"), absl::StatusCode::kNotFound);
}

// Appends the files of a name without commas.
absl::Status AppendFiles(const std::string& name, std::vector<std::string>& files) {
  std::vector<std::string> names = {name};
  if (!base::Exists(name) && IsPattern(name)) {
    ASSIGN_OR_RETURN(names, Match(name));
  }
  for (std::string& each : names) {
    std::vector<std::string> shards = ShardsIn(each);
    if (shards.empty()) shards.push_back(std::move(each));
    files.insert(files.end(), std::make_move_iterator(shards.begin()),
                 std::make_move_iterator(shards.end()));
  }
  return absl::OkStatus();
}

absl::Status CheckDiffer(const std::vector<std::string>& files) {
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const std::string& file : files) {
    struct stat status = {};
    if (stat(file.c_str(), &status) != 0) continue;  // its reader tells
    if (seen.emplace(status.st_dev, status.st_ino).second) continue;
    return base::UsageError(
        absl::StrCat(file, " is among the files of the data twice: its samples would count twice"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::string>> DataFilesOf(const std::string& spec) {
  std::vector<std::string> files;
  if (spec.empty() || base::IsStream(spec) || absl::StartsWith(spec, "synthetic:")) {
    return std::vector<std::string>{spec};
  }
  if (base::Exists(spec)) {
    RETURN_IF_ERROR(AppendFiles(spec, files));
    return files;
  }
  for (const absl::string_view name : absl::StrSplit(spec, ',')) {
    if (name.empty()) {
      return base::UsageError(
          absl::StrCat("\"", spec, "\": expected names of files with commas between them"));
    }
    RETURN_IF_ERROR(AppendFiles(std::string(name), files));
  }
  RETURN_IF_ERROR(CheckDiffer(files));
  return files;
}

std::string FirstDataFile(const std::string& spec) {
  const absl::StatusOr<std::vector<std::string>> files = DataFilesOf(spec);
  return files.ok() ? files->front() : spec;
}

}  // namespace stagecoach::engine
