#ifndef STAGECOACH_ENGINE_RUNTIME_REDUCTION_H_
#define STAGECOACH_ENGINE_RUNTIME_REDUCTION_H_

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/comm/transport.h"
#include "engine/runtime/stage/optimizer_shard.h"
#include "kernels/device.h"
#include "kernels/tensor.h"
#include "partition/cost/replication.h"

namespace stagecoach::engine {

// Sums the gradients of a rank's stages over the replicas of the rank, concurrently with its other
// work: what a REDUCE starts. If replicas shard the optimizer, it then updates this replica's
// shard, and the replicas exchange the new parameters in place of the sums. Other tasks only
// gather. A direct reduce-scatter and an all-gather: each replica receives its shard of the
// gradients of every other, adds all of them in the binary tree over gradient blocks, and sends the
// sums to the others. So the bits do not depend on the transport, and each replica sends and
// receives 2 (replicas - 1) / replicas of the gradients' bytes; more, if a replica's blocks are
// several subtrees, of which each has a sum of its own. They are sent in parts
// (partition::Replication::part_bytes); the next is in flight while one is added up.
// partition::ReductionKind::kRing leaves the sums to the transport's library.
class Reduction {
 public:
  // Work on the parameters of a stage, part by part, in this order. The tensors are those of all of
  // them, one after the other: (n) float32.
  struct Task {
    schedule::Op op = schedule::Op::kReduceGradients;  // the action, for errors
    StageId stage;
    // Gradients whose shard of this replica is summed, or none: the sum of this replica's first
    // subtree (partition::SubtreesOf). The others follow in memory, each of as many bytes.
    kernels::Tensor added;
    OptimizerShard* shard = nullptr;  // to update, or null
    bool swaps = false;               // the shard's averages, instead of an update
    kernels::Tensor gathered;         // of which all replicas get all shards

    bool adds() const { return !added.empty() && added.bytes() > 0; }
  };
  struct Options {
    kernels::Device* device = nullptr;  // of the rank, which has the gradients
    // The same place with another stream: a second device of the same index, only for this work.
    kernels::Device* beside = nullptr;
    partition::Replication replication;
    Transport* replicas = nullptr;  // on `beside`: the replicas of the rank
    absl::Duration deadline;        // of any wait for another replica
    // partition::ReductionBytes of the largest tensor that is added.
    std::byte* received = nullptr;
    // The tasks of one run of the schedule, in the order of its list: first those of REDUCEs, one
    // per stage; if updates wait for other ranks, then those of STEPs.
    std::vector<Task> tasks;
  };
  // Minimum of what `replicas` must allow (InProcessOptions::max_outstanding,
  // CommunicatorOptions::max_groups).
  static int MostOutstanding(const partition::Replication& replication) {
    return 8 * partition::CountSums(replication).most;
  }
  static constexpr int kMostGroups = 64;

  static absl::StatusOr<std::unique_ptr<Reduction>> Create(Options options);
  // Waits for the work of the last run, which has ended or is ended by an Abort of `replicas`.
  ~Reduction();
  Reduction(const Reduction&) = delete;
  Reduction& operator=(const Reduction&) = delete;

  // Starts the next task, whose tensors the work issued so far has completed. Does not wait.
  // `update`: for its shard, if it has one. This function and those below are jobs of the rank's
  // stream, in its order; each is called for every task of a run, in their order.
  absl::Status Start(const UpdateStep& update);
  // Called before the rank flushes its own transport: returns once everything started has been
  // flushed, so that both are in the order of the rank's list, which is the same on all replicas.
  // Only does so if it matters (Transport::occupies_gpu). Errors as those of Await.
  absl::Status AwaitFlushes(Transport& rank_transport);
  // Orders later work after the REDUCE of the stage. Returns the error of a task that failed, or of
  // `rank_transport`, which is polled meanwhile.
  absl::Status Await(StageId stage, Transport& rank_transport);
  // Does the same for all that were started.
  absl::Status AwaitAll(Transport& rank_transport) { return AwaitFirst(started_, rank_transport); }

  // Performs a task between runs, alone. A job of the second device's stream.
  absl::Status RunAlone(const Task& task);

  // Returns the error of a task that failed. Thread-safe.
  absl::Status Poll() { return tokens_.front()->Poll(); }
  // Returns when the REDUCE was done; to be called once the rank's stream has finished after Await.
  absl::StatusOr<std::chrono::steady_clock::time_point> DoneAt(StageId stage) const;

 private:
  // Runs all tasks of a run, one after the other: a job of the second device's stream.
  struct Work final : kernels::Job {
    explicit Work(Reduction& in) : reduction(in) {}
    void Run() override { reduction.RunTasks(); }
    Reduction& reduction;
  };
  using Tickets = std::vector<Transport::Ticket>;

  explicit Reduction(Options options);
  // Loads the code of the sums, and opens their connections, before ranks wait for one another on
  // their GPUs (Executor::WarmUp).
  absl::Status WarmUp();
  size_t IndexOf(StageId stage) const;
  absl::Status AwaitFirst(size_t count, Transport& rank_transport);
  // A message without contents orders the streams: from the rank's to the second one when a task is
  // started, and back when it is done.
  enum class Token : uint8_t { kStartSent, kStartReceived, kDoneSent, kDoneReceived };
  kernels::Tensor PlaceOf(Token token) const;
  absl::Status AwaitToken(size_t end, const Transport::Ticket& ticket, Transport& polled);

  void RunTasks();
  absl::Status PerformEach();
  absl::Status RunTask(const Task& task);
  absl::Status SumByLibrary(const Task& task);
  // Sends each replica its shard of a part of some gradients, and receives those of this one, from
  // the next Flush of `replicas` on.
  absl::Status Scatter(const Task& task, int64_t part, Tickets& tickets);
  // Returns where the shards of others are received for a part: one after the other, in the order
  // of Scatter.
  std::byte* ReceivedFor(const Task& task, int64_t part) const;
  // Adds up this replica's shard.
  absl::Status AddUp(const Task& task, int64_t part);
  // Sends this replica's shard to the others, and receives theirs, likewise from the next Flush on.
  absl::Status Gather(const kernels::Tensor& part, const Message& message, Tickets& tickets);
  absl::Status WaitFor(Tickets& tickets);
  void SayFlushed();

  const Options options_;
  const size_t replicas_, own_;
  // Where the sums of each replica are in addends_.
  std::vector<std::vector<size_t>> places_;
  kernels::Buffer token_memory_;
  std::vector<std::unique_ptr<Transport>> tokens_;  // the ends: of the rank, and of the device
                                                    // beside it
  Work work_;
  kernels::Event work_done_;
  std::atomic<bool> ends_{false};
  std::atomic<uint32_t> flushed_{0};  // tasks, since creation, that have nothing left to flush
  uint32_t to_flush_ = 0;             // tasks that were started since then
  size_t started_ = 0, awaited_ = 0;  // tasks of this run
  Tickets done_;                      // by task: its last token
  std::array<Tickets, 2> scattered_, gathered_;
  std::vector<kernels::Tensor> addends_;  // by the first block of its subtree, in blocks as large
                                          // as the smallest; none elsewhere
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_REDUCTION_H_
