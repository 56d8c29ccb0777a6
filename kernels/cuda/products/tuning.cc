#include "kernels/cuda/products/tuning.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/file.h"
#include "base/json.h"
#include "base/status_macros.h"

namespace stagecoach::kernels {
namespace {

constexpr char kFormat[] = "stagecoach-tuning";
constexpr int64_t kVersion = 2;
constexpr int64_t kMaxFileBytes = int64_t{16} << 20;
constexpr absl::Duration kLongestMeasurement = absl::Minutes(10);

// Keeps other processes out while this one measures. The lock is on a file of its own, since the
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

template <typename Integer>
absl::Status ReadField(base::ObjectReader& reader, const char* name, Integer& field) {
  constexpr base::Int64Range kRange{std::numeric_limits<Integer>::min(),
                                    std::numeric_limits<Integer>::max()};
  ASSIGN_OR_RETURN(const int64_t value, reader.RequiredInt64(name, kRange));
  field = static_cast<Integer>(value);
  return absl::OkStatus();
}

// Calls `visit` with the name and the place of each attribute: the one list of what the file has.
template <typename AnyAlgorithm, typename Visit>
absl::Status ForEachField(AnyAlgorithm& algorithm, Visit visit) {
  RETURN_IF_ERROR(visit("id", algorithm.id));
  RETURN_IF_ERROR(visit("tile", algorithm.tile));
  RETURN_IF_ERROR(visit("stages", algorithm.stages));
  RETURN_IF_ERROR(visit("split_k", algorithm.split_k));
  RETURN_IF_ERROR(visit("reduction", algorithm.reduction));
  RETURN_IF_ERROR(visit("swizzle", algorithm.swizzle));
  RETURN_IF_ERROR(visit("custom_option", algorithm.custom_option));
  RETURN_IF_ERROR(visit("inner_shape", algorithm.inner_shape));
  RETURN_IF_ERROR(visit("cluster_shape", algorithm.cluster_shape));
  return visit("apart", algorithm.apart);
}

absl::StatusOr<std::map<std::string, Algorithm>> Parse(const std::string& text) {
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
  std::map<std::string, Algorithm> choices;
  for (const std::string& key : entries.Keys()) {
    ASSIGN_OR_RETURN(base::ObjectReader reader, entries.RequiredObject(key));
    Algorithm& algorithm = choices[key];
    RETURN_IF_ERROR(ForEachField(
        algorithm, [&](const char* name, auto& field) { return ReadField(reader, name, field); }));
    RETURN_IF_ERROR(reader.Finish());
  }
  return choices;
}

}  // namespace

std::string Algorithm::ToString() const {
  if (apart != 0) return "apart";
  std::string text;
  STAGECOACH_CHECK_OK(ForEachField(*this, [&](const char* name, int64_t value) {
    if (std::strcmp(name, "apart") == 0) return absl::OkStatus();
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", value);
    return absl::OkStatus();
  }));
  return text;
}

absl::StatusOr<std::shared_ptr<TuningTable>> TuningTable::Open(const std::string& path) {
  struct Registry {
    base::Mutex mutex;
    std::map<std::string, std::weak_ptr<TuningTable>> tables ABSL_GUARDED_BY(mutex);
  };
  // Never destroyed: tables may outlive what would destroy it at exit.
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

absl::StatusOr<Algorithm> TuningTable::Choose(
    const std::string& key, absl::FunctionRef<absl::StatusOr<Algorithm>()> measure) {
  base::MutexLock lock(mutex_);
  if (const auto known = choices_.find(key); known != choices_.end()) return known->second;
  ASSIGN_OR_RETURN(
      const FileLock file_lock,
      FileLock::Take(absl::StrCat(path_, ".lock"), base::Deadline::After(kLongestMeasurement)));
  // Another process may have made the choice meanwhile.
  RETURN_IF_ERROR(Read());
  if (const auto known = choices_.find(key); known != choices_.end()) return known->second;
  ASSIGN_OR_RETURN(const Algorithm choice, measure());
  choices_.emplace(key, choice);
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
  absl::StatusOr<std::map<std::string, Algorithm>> choices = Parse(*text);
  if (!choices.ok()) {
    return absl::DataLossError(absl::StrCat(path_, " is not a tuning file or is damaged (",
                                            choices.status().message(),
                                            "): remove it, or name another"));
  }
  // What this process has chosen stays, whatever became of the file.
  choices_.merge(*choices);
  return absl::OkStatus();
}

absl::Status TuningTable::Write() const {
  nlohmann::json entries = nlohmann::json::object();
  for (const auto& [key, algorithm] : choices_) {
    nlohmann::json& entry = entries[key];
    RETURN_IF_ERROR(ForEachField(algorithm, [&](const char* name, const auto& field) {
      entry[name] = field;
      return absl::OkStatus();
    }));
  }
  const nlohmann::json file = {{"format", kFormat}, {"version", kVersion}, {"choices", entries}};
  return base::WriteFileAtomically(path_, absl::StrCat(file.dump(1), "\n"));
}

}  // namespace stagecoach::kernels
