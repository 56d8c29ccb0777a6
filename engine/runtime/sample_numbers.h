#ifndef STAGECOACH_ENGINE_RUNTIME_SAMPLE_NUMBERS_H_
#define STAGECOACH_ENGINE_RUNTIME_SAMPLE_NUMBERS_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/feed.h"
#include "engine/nn/call_context.h"
#include "kernels/device.h"
#include "schedule/ir/action.h"

namespace stagecoach::engine {

// The SampleNumbers of all micro-batches of a run, and what CallContext::rows has of them, where
// recorded work of one device reads them.
class SampleNumberTable {
 public:
  // The table is not charged to the device's budget.
  // `cached_positions`: of the stages (StageOptions).
  static absl::StatusOr<SampleNumberTable> Create(kernels::Device& device, int micro_batches,
                                                  int64_t micro_batch_rows,
                                                  int64_t cached_positions);

  // Sets them to those of `batch`, in the order of the device's stream, which must have finished
  // since the last call.
  absl::Status Set(const Batch& batch);

  // Returns an address in the device's memory, the same for every run.
  SampleNumbers* of(schedule::MicroBatch micro_batch) const {
    return NumbersIn(table_.data()) + micro_batch.value();
  }
  // Null without cached positions.
  kernels::CachedRow* rows_of(schedule::MicroBatch micro_batch) const {
    if (cached_positions_ == 0) return nullptr;
    return RowsIn(table_.data()) + micro_batch.value() * micro_batch_rows_;
  }

 private:
  SampleNumberTable(kernels::Device& device, int micro_batches, int64_t micro_batch_rows,
                    int64_t cached_positions)
      : device_(&device),
        micro_batches_(micro_batches),
        micro_batch_rows_(micro_batch_rows),
        cached_positions_(cached_positions) {}

  static SampleNumbers* NumbersIn(std::byte* table) {
    return reinterpret_cast<SampleNumbers*>(table);
  }
  kernels::CachedRow* RowsIn(std::byte* table) const {
    return reinterpret_cast<kernels::CachedRow*>(NumbersIn(table) + micro_batches_);
  }
  void SetRows(const Batch& batch, int micro_batch);

  kernels::Device* device_;
  int micro_batches_;
  int64_t micro_batch_rows_;
  int64_t cached_positions_;
  kernels::Buffer table_;
  kernels::HostBuffer staging_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_SAMPLE_NUMBERS_H_
