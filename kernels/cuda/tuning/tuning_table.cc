#include "kernels/cuda/tuning/tuning_table.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"

namespace stagecoach::kernels {
namespace {

constexpr char kFormat[] = "stagecoach-tuning";
constexpr int64_t kVersion = 2;
constexpr int64_t kMaxFileBytes = int64_t{16} << 20;
constexpr absl::Duration kLongestMeasurement = absl::Minutes(10);

// Keeps other processes out while this one measures. The lock is on a separate file, since the
// table itself is replaced when it is written. It ends with the process, however that ends.
class FileLock {
 public:
  static absl::StatusOr<FileLock> Take(const std::string& path, base::Deadline deadline) {
    const int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor < 0) return Error("open", path);
    FileLock lock(descriptor);
    while (flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return Error("lock", path);
      if (deadline.Expired()) {
        return absl::DeadlineExceededError(absl::StrCat(path,
                                                        ": another process has held this lock for ",
                                                        absl::FormatDuration(kLongestMeasurement)));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return lock;
  }

  FileLock(FileLock&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }

 private:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {}

  static absl::Status Error(const char* what, const std::string& path) {
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot ", what, " ", path));
  }

  int descriptor_;
};

absl::StatusOr<std::map<std::string, Choice>> Parse(const std::string& text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, base::ParseJson(text));
  ASSIGN_OR_RETURN(base::ObjectReader file, base::ObjectReader::Create(json));
  ASSIGN_OR_RETURN(const std::string format, file.RequiredString("format"));
  if (format != kFormat) return file.Error("format", absl::StrCat("must be \"", kFormat, "\""));
  ASSIGN_OR_RETURN(const int64_t version, file.RequiredInt64("version"));
  if (version != kVersion) {
    return file.Error("version", absl::StrCat("is ", version, ", this program reads ", kVersion));
  }
  ASSIGN_OR_RETURN(base::ObjectReader entries, file.RequiredObject("choices"));
  RETURN_IF_ERROR(file.Finish());
  std::map<std::string, Choice> choices;
  for (const std::string& key : entries.Keys()) {
    ASSIGN_OR_RETURN(base::ObjectReader reader, entries.RequiredObject(key));
    Choice& choice = choices[key];
    for (const std::string& name : reader.Keys()) {
      ASSIGN_OR_RETURN(choice[name], reader.RequiredInt64(name));
    }
    RETURN_IF_ERROR(reader.Finish());
  }
  return choices;
}

}  // namespace

std::string ToString(const Choice& choice) {
  return absl::StrJoin(choice, ", ", absl::PairFormatter(" "));
}

absl::StatusOr<std::shared_ptr<TuningTable>> TuningTable::Open(const std::string& path) {
  struct Registry {
    base::Mutex mutex;
    std::map<std::string, std::weak_ptr<TuningTable>> tables ABSL_GUARDED_BY(mutex);
  };
  // The registry is never destroyed: tables may outlive whatever would destroy it at exit.
  static Registry& registry = *new Registry;
  base::MutexLock lock(registry.mutex);
  std::weak_ptr<TuningTable>& known = registry.tables[path];
  if (std::shared_ptr<TuningTable> table = known.lock()) return table;
  std::shared_ptr<TuningTable> table(new TuningTable(path));
  {
    base::MutexLock table_lock(table->mutex_);
    RETURN_IF_ERROR(table->Read());
  }
  known = table;
  return table;
}

const Choice* TuningTable::Find(const std::string& key,
                                absl::FunctionRef<bool(const Choice&)> is_known) const {
  const auto found = choices_.find(key);
  return found != choices_.end() && is_known(found->second) ? &found->second : nullptr;
}

absl::StatusOr<Choice> TuningTable::Choose(const std::string& key,
                                           absl::FunctionRef<bool(const Choice&)> is_known,
                                           absl::FunctionRef<absl::StatusOr<Choice>()> measure) {
  base::MutexLock lock(mutex_);
  if (const Choice* const known = Find(key, is_known); known != nullptr) return *known;
  ASSIGN_OR_RETURN(
      const FileLock file_lock,
      FileLock::Take(absl::StrCat(path_, ".lock"), base::Deadline::After(kLongestMeasurement)));
  // Another process may have made the choice meanwhile.
  choices_.erase(key);
  RETURN_IF_ERROR(Read());
  if (const Choice* const known = Find(key, is_known); known != nullptr) return *known;
  ASSIGN_OR_RETURN(const Choice choice, measure());
  choices_.insert_or_assign(key, choice);
  const absl::Status written = Write();
  // A choice that is not in the file could differ from the next process's.
  if (!written.ok()) choices_.erase(key);
  RETURN_IF_ERROR(written);
  return choice;
}

absl::Status TuningTable::Read() {
  absl::StatusOr<std::string> text = base::ReadFile(path_, kMaxFileBytes);
  if (absl::IsNotFound(text.status())) return absl::OkStatus();
  RETURN_IF_ERROR(text.status());
  absl::StatusOr<std::map<std::string, Choice>> choices = Parse(*text);
  if (!choices.ok()) {
    return absl::DataLossError(absl::StrCat(path_, " is not a tuning file or is damaged (",
                                            choices.status().message(),
                                            "): remove it, or name another"));
  }
  // This process's choices stay, whatever became of the file.
  choices_.merge(*choices);
  return absl::OkStatus();
}

absl::Status TuningTable::Write() const {
  const nlohmann::json file = {{"format", kFormat}, {"version", kVersion}, {"choices", choices_}};
  return base::WriteFileAtomically(path_, absl::StrCat(file.dump(1), "\n"));
}

}  // namespace stagecoach::kernels
