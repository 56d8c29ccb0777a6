#include <gloo/rendezvous/file_store.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "engine/comm/places.h"

namespace stagecoach::engine {
namespace {

// Gloo polls as often. File systems do not notify of changes by another host.
constexpr absl::Duration kLongestPause = absl::Milliseconds(10);

// Gloo's store throws; `function`'s result or exception becomes one status.
template <typename Function>
auto GuardFolder(Function function) -> decltype(function()) {
  try {
    return function();
  } catch (const std::exception&) {
    return absl::InternalError("the folder in which the processes meet cannot be used");
  }
}

absl::Status WriteAll(int file, const std::vector<char>& data) {
  for (size_t done = 0; done < data.size();) {
    const ssize_t written = write(file, data.data() + done, data.size() - done);
    if (written < 0 && errno != EINTR) return absl::ErrnoToStatus(errno, "cannot write a value");
    if (written > 0) done += static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

// Gloo's own waits count whole seconds and overstep their limit by up to one, and nothing in its
// interface tests or removes a key; its building blocks do.
class Files final : public gloo::rendezvous::FileStore {
 public:
  explicit Files(const std::string& folder) : FileStore(folder) {}

  bool Has(const std::string& key) { return check({key}); }
  std::string PathOf(const std::string& key) { return objectPath(key); }

  enum class IfThere { kKeep, kReplace };

  // Does the same as set(), which uses one temporary name for all, so that two ranks that set a key
  // at once may damage its value. AlreadyExists: a value is there, and is kept.
  absl::Status Set(const std::string& key, const std::vector<char>& data, IfThere if_there) {
    const std::string path = PathOf(key);
    std::string temporary = absl::StrCat(path, ".XXXXXX");
    const int file = mkstemp(temporary.data());
    if (file < 0) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", temporary));
    absl::Status status = WriteAll(file, data);
    if (close(file) != 0 && status.ok()) {
      status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", temporary));
    }
    const bool replaces = if_there == IfThere::kReplace;
    if (status.ok() && !(replaces ? Rename(temporary, path) : Name(temporary, path))) {
      status = errno == EEXIST
                   ? absl::AlreadyExistsError(absl::StrCat("\"", key, "\" is set already"))
                   : absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", path));
    }
    std::remove(temporary.c_str());
    return status;
  }

  // Called by get(): a key that was there and is not any more will never come again.
  using FileStore::wait;
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    if (!check(keys)) throw std::runtime_error("a value has been removed");
  }

 private:
  static bool Rename(const std::string& temporary, const std::string& path) {
    return std::rename(temporary.c_str(), path.c_str()) == 0;
  }

  // Renames the temporary file to `path`; returns false, and errno is EEXIST, if there is such a
  // file. If a file system has no links and two ranks do so at once, the second replaces the first,
  // whole.
  static bool Name(const std::string& temporary, const std::string& path) {
    if (link(temporary.c_str(), path.c_str()) == 0) return true;
    if (errno != EPERM && errno != EOPNOTSUPP && errno != ENOSYS) return false;
    if (access(path.c_str(), F_OK) == 0) {
      errno = EEXIST;
      return false;
    }
    return Rename(temporary, path);
  }
};

// Prefixes a value with its length: Gloo refuses to read an empty value, and does not see a write
// that a full disk has cut short.
std::vector<char> WithLength(const std::string& value) {
  const std::string text = absl::StrCat(value.size(), ":", value);
  return {text.begin(), text.end()};
}

absl::StatusOr<std::string> WithoutLength(const std::string& key, const std::vector<char>& bytes) {
  const absl::string_view text(bytes.data(), bytes.size());
  const size_t colon = text.find(':');
  uint64_t length = 0;
  if (colon == absl::string_view::npos || !absl::SimpleAtoi(text.substr(0, colon), &length) ||
      length != text.size() - colon - 1) {
    return absl::DataLossError(absl::StrCat("the value of \"", key, "\" is damaged"));
  }
  return std::string(text.substr(colon + 1));
}

std::string ArrivedKey(int rank) { return absl::StrCat("arrived/", rank); }
std::string LeftKey(int rank) { return absl::StrCat("left/", rank); }

class FolderRendezvous final : public Rendezvous {
 public:
  FolderRendezvous(const Launch& launch, std::unique_ptr<Files> files, std::string folder,
                   absl::Duration deadline)
      : Rendezvous(launch.rank, launch.ranks, deadline),
        files_(std::move(files)),
        folder_(std::move(folder)) {}

  ~FolderRendezvous() override {
    if (!arrived_) return;
    DoSet(LeftKey(rank()), "", base::Deadline::Never()).IgnoreError();
    if (rank() != 0) return;
    const base::Deadline end = base::Deadline::After(farewell());
    for (int rank = 1; rank < ranks(); ++rank) {
      const bool arrived = IsSet(ArrivedKey(rank));
      while (arrived && !IsSet(LeftKey(rank)) && !end.Expired()) {
        std::this_thread::sleep_for(absl::ToChronoMilliseconds(kLongestPause));
      }
    }
    // Tried again if a rank that has just left removes its last temporary file meanwhile.
    std::error_code error;
    do {
      std::filesystem::remove_all(folder_, error);
    } while (error == std::errc::no_such_file_or_directory && !end.Expired());
  }

  absl::Status Arrive() {
    const absl::Status status = DoSet(ArrivedKey(rank()), "", base::Deadline::Never());
    if (absl::IsAlreadyExists(status)) {
      return absl::AlreadyExistsError(
          absl::StrCat(folder_, " has been used: two processes claim rank ", rank(),
                       ", or a launch that was killed has left it and it must be removed"));
    }
    arrived_ = status.ok();
    return status;
  }

 private:
  absl::Status DoSet(const std::string& key, const std::string& value, base::Deadline) override {
    return GuardFolder([&]() -> absl::Status {
      return files_->Set(key, WithLength(value), Files::IfThere::kKeep);
    });
  }

  absl::Status DoReplace(const std::string& key, const std::string& value,
                         base::Deadline) override {
    return GuardFolder([&]() -> absl::Status {
      return files_->Set(key, WithLength(value), Files::IfThere::kReplace);
    });
  }

  absl::StatusOr<std::string> DoGet(const std::string& key, int from,
                                    base::Deadline deadline) override {
    absl::Duration pause = absl::Milliseconds(1);
    while (true) {
      // The order matters: what a rank sets before it leaves or fails is found.
      const bool expired = deadline.Expired();
      const bool left = from >= 0 && IsSet(LeftKey(from));
      const absl::StatusOr<std::string> failed = Read(kFailedKey);
      absl::StatusOr<std::string> value = Read(key);
      if (!absl::IsNotFound(value.status())) return value;
      if (failed.ok()) return FailureOf(*failed);
      if (left) return absl::UnavailableError(absl::StrCat("rank ", from, " has left"));
      if (expired) {
        return absl::DeadlineExceededError(absl::StrCat("no rank has set \"", key, "\" in time"));
      }
      std::this_thread::sleep_for(absl::ToChronoNanoseconds(std::min(pause, deadline.Remaining())));
      pause = std::min(2 * pause, kLongestPause);
    }
  }

  absl::StatusOr<std::string> DoLook(const std::string& key, base::Deadline) override {
    return Read(key);
  }

  absl::StatusOr<std::vector<std::string>> DoLookAtAll(const std::string& prefix,
                                                       base::Deadline) override {
    std::vector<std::string> values;
    for (int rank = 0; rank < ranks(); ++rank) {
      absl::StatusOr<std::string> value = Read(absl::StrCat(prefix, rank));
      if (!value.ok() && !absl::IsNotFound(value.status())) return value.status();
      values.push_back(value.ok() ? *std::move(value) : "");
    }
    return values;
  }

  absl::Status DoRemove(const std::string& key, base::Deadline) override {
    return GuardFolder([&]() -> absl::Status {
      std::remove(files_->PathOf(key).c_str());
      return absl::OkStatus();
    });
  }

  bool IsSet(const std::string& key) {
    const absl::Status status = GuardFolder([&]() -> absl::Status {
      return files_->Has(key) ? absl::OkStatus() : absl::NotFoundError(key);
    });
    return status.ok();
  }

  absl::StatusOr<std::string> Read(const std::string& key) {
    return GuardFolder([&]() -> absl::StatusOr<std::string> {
      if (!files_->Has(key)) return absl::NotFoundError(key);
      return WithoutLength(key, files_->get(key));
    });
  }

  std::unique_ptr<Files> files_;
  std::string folder_;
  bool arrived_ = false;
};

std::string FolderName(absl::string_view id) {
  std::string name = absl::StrCat("stagecoach-rendezvous", id.empty() ? "" : "-", id);
  for (char& c : name) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') c = '_';
  }
  return name;
}

// Creates the folder; the first rank does. What the others find must have been created by a rank of
// the same user: the folder above may be one, such as /tmp, where others could put theirs under its
// name.
absl::Status MakeFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), S_IRWXU) == 0) return absl::OkStatus();
  if (errno != EEXIST) return absl::ErrnoToStatus(errno, absl::StrCat("cannot make ", folder));
  struct stat info = {};
  if (lstat(folder.c_str(), &info) != 0) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot inspect ", folder));
  }
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid() ||
      (info.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(folder, " is not a folder that only this user may write to"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Rendezvous>> ConnectFolder(const Launch& launch,
                                                          const std::string& parent,
                                                          absl::Duration deadline) {
  const std::string folder = absl::StrCat(parent, "/", FolderName(launch.id));
  RETURN_IF_ERROR(MakeFolder(folder));
  ASSIGN_OR_RETURN(std::unique_ptr<Files> files,
                   GuardFolder([&]() -> absl::StatusOr<std::unique_ptr<Files>> {
                     return std::make_unique<Files>(folder);
                   }));
  auto rendezvous = std::make_unique<FolderRendezvous>(launch, std::move(files), folder, deadline);
  RETURN_IF_ERROR(rendezvous->Arrive());
  return rendezvous;
}

}  // namespace stagecoach::engine
