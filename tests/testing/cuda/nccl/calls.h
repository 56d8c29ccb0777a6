#ifndef STAGECOACH_TESTS_TESTING_CUDA_NCCL_CALLS_H_
#define STAGECOACH_TESTS_TESTING_CUDA_NCCL_CALLS_H_

#include <nccl.h>

#include <functional>
#include <memory>
#include <string>

#include "tests/testing/cuda/nccl/communicator.h"

// The common part of the calls of NCCL's stand-in. As in the real library, a nonblocking
// communicator must be asked for its state until it is no longer ncclInProgress before it is used
// again, and before its streams are: here, posted work gets into the streams no sooner. It is
// stricter than the real library: the first exchange with a peer always waits until the peer has
// posted the other end.
namespace stagecoach::testing::cuda {

// Returns `result`, and keeps `why` for ncclGetLastError.
ncclResult_t Refuse(ncclResult_t result, std::string why);
ncclResult_t FailOnPurpose(ncclResult_t result, const char* call);

// Registers a new communicator: it stays known even after its destruction, so that calls with it
// are detected.
void Add(ncclComm& communicator);
void ForEach(const std::function<void(ncclComm&)>& function);  // with the lock of Locked() held

// Checks that the communicator exists.
ncclResult_t CheckExists(const ncclComm* communicator);
// Checks also that it is ready for another call.
ncclResult_t CheckReady(const ncclComm* communicator);

// Returns how many polls, 0 to 3, something takes; the same in every run of one thread. With the
// lock of Locked() held.
int NextDelay();

// Checks on the others: a communicator that starts is ready once all have come, or gets an error;
// any gets one if a rank was killed. With the lock of Locked() held.
void Watch(ncclComm& communicator);

// Returns once `done`, which is called with the lock of Locked() held, is true. A call that would
// block forever in the real library must not keep a test from ending: this aborts after two
// minutes.
void WaitUntil(const char* call, const std::function<bool()>& done);

// Puts the posted work into its streams.
ncclResult_t Launch(ncclComm& communicator, const std::shared_ptr<Group>& group);

// Returns whether this thread is between ncclGroupStart and ncclGroupEnd.
bool InGroup();

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_NCCL_CALLS_H_
