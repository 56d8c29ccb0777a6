#ifndef STAGECOACH_ENGINE_COMM_COMMUNICATOR_H_
#define STAGECOACH_ENGINE_COMM_COMMUNICATOR_H_

#include <atomic>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "engine/comm/transport.h"
#include "kernels/communicator.h"
#include "kernels/device.h"

namespace stagecoach::engine {

// Tells the ranks of one process when one of them fails. Thread-safe.
class AbortFlag {
 public:
  // Raises the flag; only the first reason counts.
  void Raise(const absl::Status& reason);
  // Returns OK until the flag is raised, then the reason.
  absl::Status reason();

 private:
  std::atomic<bool> raised_{false};
  base::Mutex mutex_;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

// A rank's end of a group that exchanges tensors by a communicator (kernels/communicator.h), in one
// process or in several. What is posted between two flushes is one group, and a rank's groups are
// performed one after the other: the schedule must be lowered and validated for
// schedule::Transfers::kGrouped. The host never waits. `abort` is shared by the ranks of this
// process; those of others find out by the communicator.
//
// Called in a job of the device's stream, by all ranks of the group concurrently.
absl::StatusOr<std::unique_ptr<Transport>> CreateCommunicatorTransport(
    kernels::Device& device, kernels::CommunicatorOptions options,
    std::shared_ptr<AbortFlag> abort);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_COMM_COMMUNICATOR_H_
