#ifndef STAGECOACH_ENGINE_RUN_SHARED_RESULTS_H_
#define STAGECOACH_ENGINE_RUN_SHARED_RESULTS_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/run/reduction.h"
#include "engine/stage/stage.h"
#include "engine/transport/transport.h"
#include "kernels/device.h"
#include "schedule/schedule.h"

namespace stagecoach::engine {

// The results of the loss, which one rank of each replica computes, on all of them: for ranks that
// are processes of their own.
class SharedResults {
 public:
  struct Options {
    kernels::Device* device = nullptr;
    // Of RankGroup, where there are replicas; else null.
    kernels::Device* beside = nullptr;
    Transport* replicas = nullptr;
    absl::Duration deadline;  // of each wait
    // Any of those whose results are shared: all of them place stages and cut batches alike.
    const schedule::Schedule* schedule = nullptr;
    const Stage* loss_stage = nullptr;  // null on the ranks that do not have it
    std::byte* table = nullptr;         // schedule::ResultTableBytes of the device's memory
    bool before_steps = false;          // CollectiveMemory::results_before_steps
  };
  // Unimplemented: more micro-batches in all replicas than fit into a part of a sum.
  static absl::StatusOr<SharedResults> Create(const Options& options);

  // Sends them to the other `ranks`, or receives them, and then those of all replicas, in the order
  // of the device's stream. All of the ranks call it. With `before_steps` it is done only once all
  // ranks of all replicas have called it.
  absl::Status Exchange(Transport& transport, absl::Span<const Rank> ranks);
  // Copies what was received to the host.
  absl::Status Fetch();

  // Of a replica's micro-batch, once the stream has finished.
  LossResult Result(int replica, MicroBatch micro_batch) const;

 private:
  explicit SharedResults(const Options& options) : options_(options) {}
  // Where those of a replica begin among those of all, in bytes.
  int64_t PlaceOf(int replica) const {
    return replica * (of_all_.bytes() / options_.replicas->ranks());
  }

  kernels::Tensor PresenceOf(Rank rank) const;

  Options options_;
  kernels::Tensor received_;  // (micro_batches, 2) float64, where the loss is elsewhere
  // With before_steps: (ranks) float64, of which a rank without results sends its own.
  kernels::Tensor presences_;
  // With replicas: of each, one after the other, in places of equal size.
  kernels::Tensor of_all_;
  std::unique_ptr<Reduction> gather_;
  kernels::HostBuffer host_results_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUN_SHARED_RESULTS_H_
