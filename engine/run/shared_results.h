#ifndef STAGECOACH_ENGINE_RUN_SHARED_RESULTS_H_
#define STAGECOACH_ENGINE_RUN_SHARED_RESULTS_H_

#include <cstddef>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/stage/stage.h"
#include "engine/transport/transport.h"
#include "kernels/device.h"
#include "schedule/schedule.h"

namespace stagecoach::engine {

// The results of the loss, which one rank of each replica computes, on all of them: for ranks that
// are processes of their own.
class SharedResults {
 public:
  // `schedule`: any of those whose results are shared; all of them place stages and cut batches
  // alike. `loss_stage`: null on the ranks that do not have it. `table`: memory of the device of
  // the size of schedule::ResultTableBytes. `replicas`: connects those of the rank; null for one.
  static absl::StatusOr<SharedResults> Create(kernels::Device& device, std::byte* table,
                                              const schedule::Schedule& schedule,
                                              const Stage* loss_stage, Transport* replicas);

  // Sends them to the other `ranks`, or receives them, in the order of the device's stream;
  // `deadline` is that of each wait. All of the ranks call it.
  absl::Status Exchange(Transport& transport, absl::Span<const Rank> ranks,
                        absl::Duration deadline);
  // Copies what was received to the host.
  absl::Status Fetch();

  // Of a replica's micro-batch, once the stream has finished.
  LossResult Result(int replica, MicroBatch micro_batch) const;

 private:
  SharedResults(kernels::Device& device, Rank owner, const Stage* loss_stage, Transport* replicas)
      : device_(&device), owner_(owner), loss_stage_(loss_stage), replicas_(replicas) {}

  kernels::Device* device_;
  Rank owner_;
  const Stage* loss_stage_;
  Transport* replicas_;
  kernels::Tensor received_;  // (micro_batches, 2) float64, where the loss is elsewhere
  kernels::Tensor of_all_;    // (replicas, micro_batches, 2) float64, if there are replicas
  std::vector<Rank> all_replicas_;
  kernels::HostBuffer host_results_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUN_SHARED_RESULTS_H_
