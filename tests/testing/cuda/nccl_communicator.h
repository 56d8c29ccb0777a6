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

#include "tests/testing/cuda/nccl_clique.h"
#include "tests/testing/nccl_batches.h"

// What happens between communicators of the stand-in of NCCL. All is to be called with the lock of
// Locked() held, as `ready` and `run` of operations are.
//
// There is no buffering. A group occupies its streams from the moment it is the first operation of
// each until all its transfers are done, and nothing of a transfer moves unless the groups of both
// its ends occupy their streams. Nor does a group begin before all that were launched on its GPU
// earlier have ended, of whichever communicators: a kernel that waits may hold what the next one
// needs, so ranks that launch in different orders can hang, and here they do. It moves when the
// streams of both are looked at, and once all is done that is in earlier batches of its channel
// (tests/testing/nccl_batches.h).
namespace stagecoach::testing::cuda {

// An all-reduce, in place, by addition. Every rank sends all of it to all others, and adds up once
// it has theirs.
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
  std::shared_ptr<Sum> sum = nullptr;  // that it is part of

  int64_t number = 0;  // on its path, from 1; 0: not started
  int64_t pass = 0;    // of those in its group on its path, from 1
  NcclPlace place;
  int64_t chunks = 0;  // that this end has moved
  bool done = false;
};

struct Group {
  explicit Group(ncclComm_t of) : communicator(of) {}

  ncclComm_t const communicator;
  std::deque<Transfer> transfers;  // in the order in which they were posted
  std::set<cudaStream_t> streams;
  std::set<cudaStream_t> arrived;  // streams whose first operation it is
  int64_t launch = 0;              // which of all that this process has launched, from 1
  bool started = false, ended = false;
};

}  // namespace stagecoach::testing::cuda

struct ncclComm {
  enum class State : uint8_t { kStarting, kReady, kFinalizing, kFinalized, kGone };
  // How many transfers were started and done, of the end of a path.
  struct Count {
    int64_t started = 0, done = 0;
  };

  std::unique_ptr<stagecoach::testing::cuda::Clique> clique;  // null once it has gone
  int ranks = 0;
  int rank = 0;
  int gpu = 0;
  bool blocking = true;
  State state = State::kStarting;
  ncclResult_t error = ncclSuccess;  // asynchronous; stays
  // A nonblocking communicator does things only when it is asked whether they are done, and not at
  // the first time.
  int polls_left = 0;
  std::shared_ptr<stagecoach::testing::cuda::Group> launching;  // posted, not yet in its streams
  // In their streams and not ended. Only the first can start: a communicator's groups are serial,
  // whatever their streams.
  std::deque<std::shared_ptr<stagecoach::testing::cuda::Group>> groups;
  std::map<std::pair<bool, int>, Count> counts;  // by is_send and peer
  int64_t groups_until_failure = -1;             // -1: none is to come
};

namespace stagecoach::testing::cuda {

// Tells the peers of `group` that there are paths to be connected.
void AskForPaths(const Group& group);
// Whether the peers have asked for the same ones.
bool PathsConnected(const Group& group);

// Operation::ready and Operation::run of a group, in one of its streams.
bool MayEnd(Group& group, cudaStream_t stream);
void End(Group& group);

// The communicator takes no further part: peers that wait for it, and its own groups, never finish.
void Fail(ncclComm& communicator, ncclResult_t error);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_NCCL_COMMUNICATOR_H_
