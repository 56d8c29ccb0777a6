#include "tools/stagecoach/terminal/scratch_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/system/file.h"
#include "base/system/file_lock.h"

namespace stagecoach::tools {

namespace {

constexpr char kLock[] = ".in-use";

// Returns whether it is a folder that this user's processes have made.
bool IsOwn(const std::string& path) {
  struct stat info = {};
  return lstat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode) && info.st_uid == geteuid();
}

// Removes the folders whose names begin with the prefix, if they have a lock that nobody holds.
void RemoveLeft(const std::filesystem::path& parent, const std::string& prefix) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(parent, ignored)) {
    const std::string path = entry.path().string(), lock_path = absl::StrCat(path, "/", kLock);
    if (!absl::StartsWith(entry.path().filename().string(), prefix) || !IsOwn(path) ||
        !base::Exists(lock_path)) {
      continue;
    }
    const absl::StatusOr<base::FileLock> lock = base::FileLock::Take(lock_path, "");
    if (lock.ok()) std::filesystem::remove_all(path, ignored);
  }
}

}  // namespace

ScratchFolder::ScratchFolder(std::string path, std::optional<base::FileLock> lock)
    : path_(std::move(path)), lock_(std::move(lock)) {}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!kept_) {
    std::filesystem::remove_all(path_, ignored);
  } else if (lock_.has_value()) {
    lock_->Abandon();
  }
}

absl::StatusOr<std::unique_ptr<ScratchFolder>> ScratchFolder::Make(const std::string& command) {
  std::error_code error;
  const std::filesystem::path parent = std::filesystem::temp_directory_path(error);
  if (error) {
    const char* const named = std::getenv("TMPDIR");
    return base::OutputError(absl::StrCat("there is no folder for temporary files, ",
                                          named != nullptr ? named : "/tmp",
                                          "; name one with TMPDIR"));
  }
  const std::string prefix = absl::StrCat("stagecoach-", command, "-");
  RemoveLeft(parent, prefix);
  constexpr int kMostTries = 10;  // another process may take a new folder
  for (int i = 0; i < kMostTries; ++i) {
    std::string name = (parent / absl::StrCat(prefix, "XXXXXX")).string();
    if (mkdtemp(name.data()) == nullptr) break;
    absl::StatusOr<base::FileLock> lock =
        base::FileLock::Take(absl::StrCat(name, "/", kLock), base::DescribeProcess());
    if (lock.ok()) return absl::WrapUnique(new ScratchFolder(std::move(name), *std::move(lock)));
    if (absl::IsUnimplemented(lock.status())) {
      return absl::WrapUnique(new ScratchFolder(std::move(name), std::nullopt));
    }
  }
  return base::OutputError(absl::StrCat("cannot make a folder in ", parent.string()));
}

}  // namespace stagecoach::tools
