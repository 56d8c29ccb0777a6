#ifndef STAGECOACH_ENGINE_RUN_SHARED_RESULTS_H_
#define STAGECOACH_ENGINE_RUN_SHARED_RESULTS_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/stage/stage.h"
#include "engine/transport/transport.h"
#include "kernels/device.h"
#include "schedule/schedule.h"

namespace stagecoach::engine {

// The results of the loss, which one rank computes, on all of them: for ranks that are processes of
// their own.
class SharedResults {
 public:
  // `schedule`: any of those whose results are shared; all of them place stages and cut batches
  // alike. `loss_stage`: null on the ranks that do not have it. Tables are not charged to the
  // device's budget.
  static absl::StatusOr<SharedResults> Create(kernels::Device& device,
                                              const schedule::Schedule& schedule,
                                              const Stage* loss_stage);

  // Sends them, or receives them and copies them to the host, in the order of the device's stream;
  // `deadline` is that of each wait. Every rank calls it.
  absl::Status Exchange(Transport& transport, absl::Duration deadline);

  // Of a rank that does not have the loss stage, once the stream has finished.
  LossResult Received(MicroBatch micro_batch) const;

 private:
  SharedResults(kernels::Device& device, Rank owner, const Stage* loss_stage)
      : device_(&device), owner_(owner), loss_stage_(loss_stage) {}

  kernels::Device* device_;
  Rank owner_;
  const Stage* loss_stage_;
  kernels::Buffer results_;  // (micro_batches, 2) float64
  kernels::HostBuffer host_results_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUN_SHARED_RESULTS_H_
