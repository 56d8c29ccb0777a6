#ifndef STAGECOACH_KERNELS_CUDA_RUNTIME_NCCL_COMMUNICATOR_H_
#define STAGECOACH_KERNELS_CUDA_RUNTIME_NCCL_COMMUNICATOR_H_

#include <nccl.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "kernels/communicator.h"
#include "kernels/cuda/runtime/cuda_stream.h"
#include "kernels/cuda/runtime/handles.h"

namespace stagecoach::kernels {

// Returns the version of the library as it prints it, "2.28.9"; "" if it does not tell.
std::string NcclVersionText();

// Returns the CommunicatorOptions::id of a new group. The rank that calls this must be reachable by
// all others from then on, over the network that NCCL finds (NCCL_SOCKET_IFNAME).
absl::StatusOr<std::string> NewNcclId();

// Joins the group: returns when all ranks have joined and are connected to their peers, or with
// DeadlineExceeded. Two ranks on one GPU are refused (NCCL cannot do that). InvalidArgument: a
// rank, a peer or an id is invalid. `stream` outlives the result.
absl::StatusOr<std::unique_ptr<Communicator>> CreateNcclCommunicator(
    CudaStream& stream, const CommunicatorOptions& options);

// A Communicator by NCCL. Its communicators are nonblocking, so that every wait of the host has a
// deadline. Groups run on the stream's communication stream. Calls that block even so, abort and
// destroy, run in threads that may be left behind (base/system/run_with_timeout.h).
class NcclCommunicator final : public Communicator {
 public:
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Create(
      CudaStream& stream, const CommunicatorOptions& options);
  ~NcclCommunicator() override;

  absl::Status Send(int to, const void* data, int64_t bytes) override;
  absl::Status Receive(int from, void* data, int64_t bytes) override;
  absl::Status Sum(float* data, int64_t elements) override;
  absl::StatusOr<Group> Launch() override;
  absl::Status ComeAfter(Group group) override;
  int32_t groups_done() const override;
  absl::StatusOr<std::chrono::steady_clock::time_point> DoneAt(Group group) const override;
  void Restart() override;
  absl::Status Poll() override;
  void Abort() override;

 private:
  struct Transfer {
    int peer;
    void* to;          // null if it sends
    const void* from;  // null if it receives
    int64_t bytes;
  };

  NcclCommunicator(CudaStream& stream, const CommunicatorOptions& options, CudaEvent issued,
                   std::vector<CudaEvent> done, DeviceMemory scratch);

  absl::Status Connect(const CommunicatorOptions& options);
  absl::Status OpenConnections(const std::vector<int>& peers, base::Deadline deadline);
  absl::Status Add(Transfer transfer);
  // Issues what was collected to the communication stream.
  absl::Status IssueGroup(base::Deadline deadline);
  absl::Status IssueTransfers();
  absl::Status IssueSums();
  // Waits until NCCL has done in the background what it was last asked for. No other call may come
  // before that. Returns DeadlineExceeded if it takes too long.
  absl::Status Settle(const char* call, base::Deadline deadline);
  // Returns what NCCL currently says of the communicator: ncclSuccess, ncclInProgress or an error.
  ncclResult_t State() const;
  absl::Status Checked(ncclResult_t result, const char* call);
  absl::Status CheckUsable() const;
  bool SayGoodbye();
  // Passes the communicator to `end`, which blocks. Returns after `limit` at the latest.
  void End(ncclResult_t (*end)(ncclComm_t), const char* call, absl::Duration limit);
  std::string Name() const;  // "rank 2 of 4"

  CudaStream& stream_;
  const int ranks_, rank_;
  const absl::Duration deadline_;
  const std::function<absl::Status()> poll_;
  const CudaEvent issued_;             // the compute stream's end when a group is launched
  const std::vector<CudaEvent> done_;  // one per group since Restart
  // Used by the first messages. Allocated before any rank waits for a peer on the GPU, and kept:
  // allocating or freeing memory while a kernel is waiting may mean waiting for it.
  const DeviceMemory scratch_;
  std::vector<Transfer> collected_;
  std::vector<absl::Span<float>> collected_sums_;
  ncclComm_t communicator_ = nullptr;  // owned
  bool broken_ = false;                // an error was seen: only aborting remains
  std::atomic<bool> aborted_{false};
  int32_t launched_ = 0;
  Group awaited_ = -1;  // the last group that the compute stream waits for; it also waits for all
                        // earlier ones
  mutable int32_t known_done_ = 0;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_RUNTIME_NCCL_COMMUNICATOR_H_
