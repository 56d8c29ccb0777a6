#ifndef STAGECOACH_ENGINE_RUN_SAMPLE_NUMBERS_H_
#define STAGECOACH_ENGINE_RUN_SAMPLE_NUMBERS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/feed.h"
#include "engine/model/call_context.h"
#include "kernels/device.h"
#include "schedule/action.h"

namespace stagecoach::engine {

// The SampleNumbers of all micro-batches of a run, where recorded work of one device reads them.
class SampleNumberTable {
 public:
  // The table is not charged to the device's budget.
  static absl::StatusOr<SampleNumberTable> Create(kernels::Device& device, int micro_batches,
                                                  int64_t micro_batch_rows);

  // Makes them those of `batch`, in the order of the device's stream, which must have finished
  // since the last call.
  absl::Status Set(const Batch& batch);

  // In the device's memory; the same address for every run.
  SampleNumbers* of(schedule::MicroBatch micro_batch) const {
    return reinterpret_cast<SampleNumbers*>(table_.data()) + micro_batch.value();
  }

 private:
  SampleNumberTable(kernels::Device& device, int64_t micro_batch_rows)
      : device_(&device), micro_batch_rows_(micro_batch_rows) {}

  kernels::Device* device_;
  int64_t micro_batch_rows_;
  kernels::Buffer table_;
  kernels::HostBuffer staging_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUN_SAMPLE_NUMBERS_H_
