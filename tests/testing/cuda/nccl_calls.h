#ifndef STAGECOACH_TESTS_TESTING_CUDA_NCCL_CALLS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_NCCL_CALLS_H_

#include <nccl.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/testing/cuda/nccl_communicator.h"

// What the calls of NCCL's stand-in have in common. As in the real library, a nonblocking
// communicator must be asked for its state until it is no longer ncclInProgress before it is used
// again, and before its streams are: here what was posted gets into the streams no sooner. Stricter
// than the real library: the first exchange with a peer always waits until the peer has posted the
// other end.
namespace stagecoach::testing::cuda {

// Returns `result`, and keeps `why` for ncclGetLastError.
ncclResult_t Refuse(ncclResult_t result, std::string why);
ncclResult_t FailOnPurpose(ncclResult_t result, const char* call);

// A communicator that has just been made: known from now on, also after it has gone, so that calls
// with it are seen.
void Add(ncclComm& communicator);
void ForEach(const std::function<void(ncclComm&)>& function);  // with the lock of Locked() held

// Whether the communicator is there at all.
ncclResult_t CheckExists(const ncclComm* communicator);
// And whether it is free for another call.
ncclResult_t CheckReady(const ncclComm* communicator);

// How many polls of 0 to 3 something takes; the same in every run of one thread. With the lock of
// Locked() held.
int NextDelay();

// Looks what has become of the others: a communicator that starts is ready once all have come, or
// gets an error; any gets one when a rank was killed. With the lock of Locked() held.
void Watch(ncclComm& communicator);

// Returns once `done`, which is asked with the lock of Locked() held. What of the real library
// would block for ever must not keep a test from ending: after two minutes this aborts.
void WaitUntil(const char* call, const std::function<bool()>& done);

// Puts what was posted into its streams.
ncclResult_t Launch(ncclComm& communicator, const std::shared_ptr<Group>& group);

// Whether a call is being made between ncclGroupStart and ncclGroupEnd of this thread.
bool InGroup();

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_NCCL_CALLS_H_
