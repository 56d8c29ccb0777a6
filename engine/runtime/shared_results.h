#ifndef STAGECOACH_ENGINE_RUNTIME_SHARED_RESULTS_H_
#define STAGECOACH_ENGINE_RUNTIME_SHARED_RESULTS_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/comm/transport.h"
#include "engine/runtime/reduction.h"
#include "engine/runtime/stage/stage.h"
#include "kernels/device.h"
#include "schedule/ir/schedule.h"

namespace stagecoach::engine {

// Shares the results of the loss, which one rank of each replica computes, with all ranks: for
// ranks that are separate processes.
class SharedResults {
 public:
  struct Options {
    kernels::Device* device = nullptr;
    // From RankGroup, if there are replicas; otherwise null.
    kernels::Device* beside = nullptr;
    Transport* replicas = nullptr;
    absl::Duration deadline;  // of each wait
    // Any schedule whose results are shared: all of them place stages and cut batches alike.
    const schedule::Schedule* schedule = nullptr;
    const Stage* loss_stage = nullptr;  // null on ranks that do not have it
    std::byte* table = nullptr;         // schedule::ResultTableBytes of the device's memory
    bool before_steps = false;          // CollectiveMemory::results_before_steps
  };
  // Unimplemented: more micro-batches in all replicas than fit into a part of a sum.
  static absl::StatusOr<SharedResults> Create(const Options& options);

  // Sends the results to the other `ranks`, or receives them, in the order of the device's stream.
  // All of the ranks call it. With `before_steps` it completes only once all have called it.
  absl::Status ExchangeAmongRanks(Transport& transport, absl::Span<const Rank> ranks);
  // Then exchanges those of all replicas, likewise. When it returns, this replica has them.
  absl::Status ExchangeAmongReplicas(Transport& transport);
  // Copies what was received to the host.
  absl::Status Fetch();

  // Returns the result of a replica's micro-batch, once the stream has finished.
  LossResult Result(int replica, MicroBatch micro_batch) const;

 private:
  explicit SharedResults(const Options& options) : options_(options) {}
  // Returns the offset in bytes of a replica's results among those of all.
  int64_t PlaceOf(int replica) const {
    return replica * (of_all_.bytes() / options_.replicas->ranks());
  }

  kernels::Tensor PresenceOf(Rank rank) const;

  Options options_;
  kernels::Tensor received_;  // (micro_batches, 2) float64, if the loss is elsewhere
  // With before_steps: (ranks) float64; a rank without results sends its own element.
  kernels::Tensor presences_;
  // With replicas: the results of each, one after the other, in places of equal size.
  kernels::Tensor of_all_;
  std::unique_ptr<Reduction> gather_;
  kernels::HostBuffer host_results_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_SHARED_RESULTS_H_
