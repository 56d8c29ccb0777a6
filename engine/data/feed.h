#ifndef STAGECOACH_ENGINE_DATA_FEED_H_
#define STAGECOACH_ENGINE_DATA_FEED_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/dataset.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Samples of one step: rows of a data set, cut into equal micro-batches in order. Fewer than a
// whole batch only in evaluation: the missing rows at the end are padding.
struct Batch {
  const Dataset* data = nullptr;
  absl::Span<const int64_t> rows;

  // How many rows of a micro-batch are not padding.
  int64_t ValidRows(int micro_batch, int64_t micro_batch_rows) const;
};

// Brings the samples of a step to a device. Where the host cannot write the device's memory, each
// micro-batch has a place in host memory of its own from which it is copied in the stream's order,
// so that feeding never waits; a place is used again in the next run of the schedule.
class Feed {
 public:
  struct Options {
    int64_t micro_batch_rows = 1;
    int micro_batches = 1;
    int64_t features = 0;  // 0: none are fed
    bool feeds_labels = false;
  };
  Feed() = default;  // feeds nothing
  static absl::StatusOr<Feed> Create(kernels::Device& device, const Options& options);

  // Jobs of the device's stream; micro-batches in any order. Between two calls for the same
  // micro-batch the stream must have finished.
  //   x (rows, features) of the activation type; padding is 0.    labels (rows) int32; without
  //   padding
  absl::Status Features(const Batch& batch, int micro_batch, const kernels::Tensor& x);
  absl::Status Labels(const Batch& batch, int micro_batch, const kernels::Tensor& labels);

 private:
  Feed(kernels::Device& device, const Options& options) : device_(&device), options_(options) {}

  // Where the host writes what `tensor` is to be.
  std::byte* PlaceOf(const kernels::HostBuffer& staging, int micro_batch,
                     const kernels::Tensor& tensor) const;
  absl::Status Deliver(const std::byte* place, const kernels::Tensor& tensor);

  kernels::Device* device_ = nullptr;
  Options options_;
  kernels::HostBuffer features_, labels_;  // empty where the device's memory is the host's
  kernels::HostBuffer row_;                // (features) float32, before it is rounded
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FEED_H_
