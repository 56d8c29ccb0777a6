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

// What happens between communicators of the stand-in of NCCL, whose ranks are threads of one
// process. All is to be called with the lock of Locked() held, as `ready` and `run` of operations
// are.
//
// There is no buffer anywhere. A group occupies its streams from the moment it is the first
// operation of each until all its transfers are done, and a transfer can be done only while the
// groups of both its ends occupy their streams.
namespace stagecoach::testing::cuda {

// One end of a transfer.
struct Transfer {
  bool is_send = false;
  int peer = 0;
  std::byte* data = nullptr;
  int64_t bytes = 0;
  ncclDataType_t type = ncclInt8;
  cudaStream_t stream = nullptr;

  // The other end, once both have met. It is there until the transfer is done.
  Transfer* partner = nullptr;
  bool done = false;
  bool lost = false;  // the partner has gone; never done
};

struct Group {
  explicit Group(ncclComm_t of) : communicator(of) {}

  ncclComm_t const communicator;
  std::deque<Transfer> transfers;  // in the order in which they were posted; addresses stay
  std::set<cudaStream_t> streams;
  std::set<cudaStream_t> arrived;  // streams whose first operation it is
  bool started = false, ended = false;
};

// All ranks of one ncclUniqueId.
struct Clique {
  using Path = std::pair<int, int>;  // from, to

  explicit Clique(int number) : ranks(number), members(static_cast<size_t>(number)) {}

  const int ranks;
  std::vector<ncclComm_t> members;  // null: has not come yet
  int joined = 0;
  // Ends of started groups that have not met their other end.
  std::map<Path, std::deque<Transfer*>> sends, receives;
  // Ends for which a group was ever posted: a path is connected when both have been.
  std::set<Path> sends_asked, receives_asked;
};

}  // namespace stagecoach::testing::cuda

struct ncclComm {
  enum class State : uint8_t { kStarting, kReady, kFinalizing, kFinalized, kGone };

  std::shared_ptr<stagecoach::testing::cuda::Clique> clique;
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
  int64_t groups_until_failure = -1;  // -1: none is to come
};

namespace stagecoach::testing::cuda {

// Enters `communicator`; the last rank to come makes all of them ready, or gives all an error.
void Join(ncclComm& communicator);

// Tells the peers of `group` that there are paths to be connected.
void AskForPaths(const Group& group);
// Whether the peers have asked for the same ones.
bool PathsConnected(const Group& group);

// Operation::ready and Operation::run of a group, in one of its streams.
bool MayEnd(Group& group, cudaStream_t stream);
void End(Group& group);

// The communicator takes no further part: peers wait for it in vain. Its own groups wait too if it
// failed, and end, with nothing received, if it has gone (kGone).
void Leave(ncclComm& communicator);
void Fail(ncclComm& communicator, ncclResult_t error);

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_NCCL_COMMUNICATOR_H_
