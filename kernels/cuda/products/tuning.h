#ifndef STAGECOACH_KERNELS_CUDA_PRODUCTS_TUNING_H_
#define STAGECOACH_KERNELS_CUDA_PRODUCTS_TUNING_H_

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

// Which algorithm computes which product, measured once and kept in a file.
namespace stagecoach::kernels {

// What tells an algorithm of cuBLASLt from all others for the same product: its
// CUBLASLT_ALGO_CONFIG attributes. Two algorithms that are equal compute the same bits.
struct Algorithm {
  int32_t id = 0;
  uint32_t tile = 0;
  uint32_t stages = 0;
  int32_t split_k = 1;
  uint32_t reduction = 0;
  uint32_t swizzle = 0;
  uint32_t custom_option = 0;
  uint16_t inner_shape = 0;
  uint16_t cluster_shape = 0;
  // 1: no algorithm, but the product without its epilogue and a kernel after it (BlasLt::Plan).
  uint32_t apart = 0;

  std::string ToString() const;  // "id 66, tile 20, stages 12, ..."

  friend bool operator==(const Algorithm&, const Algorithm&) = default;
};

// The choices of one file. Within a process there is one table per path, and processes agree
// through the file, so that equal products get equal algorithms, and with them the same bits,
// wherever they are computed. Thread-safe.
class TuningTable {
 public:
  // A file that does not exist yet is an empty table. DataLoss, with path and place, if it
  // is damaged or something else: nothing in it is used then, and it is not written to.
  static absl::StatusOr<std::shared_ptr<TuningTable>> Open(const std::string& path);

  TuningTable(const TuningTable&) = delete;
  TuningTable& operator=(const TuningTable&) = delete;

  // The choice for `key`. The first time, in whatever process, `measure` makes it, and it is in the
  // file before this returns. Only one thread of all processes measures at a time; the others wait
  // for it, for at most ten minutes (DeadlineExceeded). `measure` must not use this table.
  absl::StatusOr<Algorithm> Choose(const std::string& key,
                                   absl::FunctionRef<absl::StatusOr<Algorithm>()> measure);

  const std::string& path() const { return path_; }

 private:
  explicit TuningTable(std::string path) : path_(std::move(path)) {}

  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status Write() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  base::Mutex mutex_;
  std::map<std::string, Algorithm> choices_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_PRODUCTS_TUNING_H_
