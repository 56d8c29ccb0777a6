#ifndef STAGECOACH_TESTS_TESTING_CUDA_NCCL_COMMUNICATOR_H_
#define STAGECOACH_TESTS_TESTING_CUDA_NCCL_COMMUNICATOR_H_

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "tests/testing/cuda/nccl/clique.h"
#include "tests/testing/nccl_batches.h"

// The work between communicators of the stand-in of NCCL. Everything must be called with the lock
// of Locked() held, as `ready` and `run` of operations are.
//
// There is no buffering. A group occupies its streams from the moment it is the first operation of
// each until all its transfers are done, and nothing of a transfer moves unless the groups of both
// its ends occupy their streams. A group does not begin before all groups launched on its GPU
// earlier have ended, whatever their communicator: a waiting kernel may hold what the next one
// needs, so ranks that launch in different orders can hang, and here they do. A transfer moves when
// the streams of both ends are checked, and once everything in earlier batches of its channel is
// done (tests/testing/nccl_batches.h).
namespace stagecoach::testing::cuda {

// An all-reduce, in place, by addition. Every rank sends its whole array to all others, and adds
// them up once it has theirs.
struct Sum {
  float* data = nullptr;
  int64_t elements = 0;
  std::map<int, std::vector<float>> theirs;  // by rank
};

// One end of a transfer.
struct Transfer {
  bool is_send = false;
  int peer = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  ncclDataType_t type = ncclInt8;
  cudaStream_t stream = nullptr;
  std::shared_ptr<Sum> sum = nullptr;  // the sum that it is part of

  int64_t number = 0;  // on its path, from 1; 0: not started
  int64_t pass = 0;    // among those in its group on its path, from 1
  NcclPlace place;
  int64_t chunks = 0;  // that this end has moved
  bool done = false;
};

struct Group {
  explicit Group(ncclComm_t of) : communicator(of) {}

  ncclComm_t const communicator;
  std::deque<Transfer> transfers;  // in the order in which they were posted
  std::set<cudaStream_t> streams;
  std::set<cudaStream_t> arrived;  // streams whose first operation is this group
  int64_t launch = 0;              // its number among all launches of this process, from 1
  bool started = false, ended = false;
};

}  // namespace stagecoach::testing::cuda

struct ncclComm {
  enum class State : uint8_t { kStarting, kReady, kFinalizing, kFinalized, kGone };
  // The number of started and finished transfers at the end of a path.
  struct Count {
    int64_t started = 0, done = 0;
  };

  std::unique_ptr<stagecoach::testing::cuda::Clique> clique;  // null once it has left
  int ranks = 0;
  int rank = 0;
  int gpu = 0;
  bool blocking = true;
  State state = State::kStarting;
  ncclResult_t error = ncclSuccess;  // asynchronous; stays
  // A nonblocking communicator makes progress only when it is asked whether it is done, and not at
  // the first time.
  int polls_left = 0;
  std::shared_ptr<stagecoach::testing::cuda::Group> launching;  // posted, not yet in its streams
  // The groups in their streams that have not ended. Only the first can start: a communicator's
  // groups are serial, whatever their streams.
  std::deque<std::shared_ptr<stagecoach::testing::cuda::Group>> groups;
  std::map<std::pair<bool, int>, Count> counts;  // by is_send and peer
  int64_t groups_until_failure = -1;             // -1: no failure is planned
};

namespace stagecoach::testing::cuda {

// Tells the peers of `group` that paths need to be connected.
void AskForPaths(const Group& group);
// Returns whether the peers have asked for the same ones.
bool PathsConnected(const Group& group);

// Implement Operation::ready and Operation::run of a group, in one of its streams.
bool MayEnd(Group& group, cudaStream_t stream);
void End(Group& group);

// Makes the communicator take no further part: peers that wait for it, and its own groups, never
// finish.
void Fail(ncclComm& communicator, ncclResult_t error);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_NCCL_COMMUNICATOR_H_
