#ifndef STAGECOACH_KERNELS_CUDA_TUNING_TUNER_H_
#define STAGECOACH_KERNELS_CUDA_TUNING_TUNER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "kernels/cuda/tuning/tuning_table.h"

namespace stagecoach::kernels {

// Chooses, for one device, among ways to compute whose bits differ. A choice depends on the work,
// the GPU's model and the tuning file alone, not on what else was chosen before. Thread-safe.
class Tuner {
 public:
  // `tuning_file` and `is_for_planning` are those of CudaDeviceOptions.
  static absl::StatusOr<std::unique_ptr<Tuner>> Create(int gpu, const std::string& tuning_file,
                                                       bool is_for_planning = false);

  int gpu() const { return gpu_; }
  const std::string& model() const { return model_; }  // "NVIDIA H200, 132 multiprocessors"
  int compute_major() const { return compute_major_; }
  // Returns whether the GPU has the products of warpgroups (kernels/cuda/device/warpgroup.cuh).
  bool has_warpgroup_products() const { return compute_major_ == 9 && compute_minor_ == 0; }
  // Returns whether kernels can start early (LaunchEarly).
  bool starts_kernels_early() const { return compute_major_ >= 9; }
  int64_t block_shared_bytes() const { return block_shared_bytes_; }  // the most that a block gets

  bool is_for_planning() const { return is_for_planning_; }
  // Returns whether there is a tuning file and the device will run.
  bool measures() const { return table_ != nullptr && !is_for_planning_; }
  // Returns the path of the file.
  const std::string& path() const { return table_->path(); }
  // Calls TuningTable::Choose for the work on GPUs of this model.
  absl::StatusOr<Choice> Choose(const std::string& work,
                                absl::FunctionRef<bool(const Choice&)> is_known,
                                absl::FunctionRef<absl::StatusOr<Choice>()> measure) {
    return table_->Choose(model_ + ", " + work, is_known, measure);
  }

  // Adds to and returns Device::choices, in the order of the texts.
  void Tell(const std::string& what, std::string way);
  std::vector<std::string> choices();

 private:
  Tuner(int gpu, std::string model, int compute_major, int compute_minor,
        int64_t block_shared_bytes, std::shared_ptr<TuningTable> table, bool is_for_planning)
      : gpu_(gpu),
        model_(std::move(model)),
        compute_major_(compute_major),
        compute_minor_(compute_minor),
        block_shared_bytes_(block_shared_bytes),
        table_(std::move(table)),
        is_for_planning_(is_for_planning) {}

  const int gpu_;
  const std::string model_;
  const int compute_major_, compute_minor_;
  const int64_t block_shared_bytes_;
  const std::shared_ptr<TuningTable> table_;  // null: nothing is measured
  const bool is_for_planning_;

  base::Mutex mutex_;
  std::map<std::string, std::string> told_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_TUNING_TUNER_H_
