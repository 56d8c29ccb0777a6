#ifndef STAGECOACH_KERNELS_CUDA_TUNING_TUNING_TABLE_H_
#define STAGECOACH_KERNELS_CUDA_TUNING_TUNING_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"

// The fastest ways to compute, measured once and kept in a file.
namespace stagecoach::kernels {

// One of several ways to compute the same result, identified by numbers with names. Two choices
// that are equal compute the same bits.
using Choice = std::map<std::string, int64_t>;

std::string ToString(const Choice& choice);  // "rows 128, step 64, warps 4"

// The choices of one file. Within a process there is one table per path, and processes agree
// through the file, so that equal work is done in the same way, with the same bits, everywhere.
// Thread-safe.
class TuningTable {
 public:
  // Opens the table; a file that does not exist yet is an empty table. DataLoss, with path and
  // position, if it is damaged or something else: then nothing in it is used, and it is not written
  // to.
  static absl::StatusOr<std::shared_ptr<TuningTable>> Open(const std::string& path);

  TuningTable(const TuningTable&) = delete;
  TuningTable& operator=(const TuningTable&) = delete;

  // Returns the choice for `key`. The first time, in whatever process, `measure` makes it, and it
  // is in the file before this returns. If `is_known` is false for the choice in the file,
  // `measure` makes a new one, which replaces it. Only one thread of all processes measures at a
  // time; the others wait for it, for at most ten minutes (DeadlineExceeded). `measure` must not
  // use this table.
  absl::StatusOr<Choice> Choose(const std::string& key,
                                absl::FunctionRef<bool(const Choice&)> is_known,
                                absl::FunctionRef<absl::StatusOr<Choice>()> measure);

  const std::string& path() const { return path_; }

 private:
  explicit TuningTable(std::string path) : path_(std::move(path)) {}

  // Returns null if there is no known choice.
  const Choice* Find(const std::string& key, absl::FunctionRef<bool(const Choice&)> is_known) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  base::Mutex mutex_;
  std::map<std::string, Choice> choices_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_TUNING_TUNING_TABLE_H_
