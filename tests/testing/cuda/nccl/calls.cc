#include "tests/testing/cuda/nccl/calls.h"

#include <chrono>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

using State = ncclComm::State;

// All communicators that have ever existed.
std::set<ncclComm*>& Communicators() {
  static auto* const communicators = new std::set<ncclComm*>;
  return *communicators;
}

std::mutex last_error_mutex;
std::string& LastError() {
  static auto* const text = new std::string;
  return *text;
}

// Does what a nonblocking communicator has been asked for, if it is time, and returns its state.
ncclResult_t Poll(ncclComm& communicator) {
  std::shared_ptr<Group> group;
  ncclResult_t result = ncclInProgress;
  Locked([&] {
    const bool started = communicator.state != State::kStarting;
    Watch(communicator);
    if (communicator.error != ncclSuccess) {
      result = communicator.error;
    } else if (!started || communicator.polls_left > 0) {
      if (started) --communicator.polls_left;
    } else if (communicator.launching != nullptr) {
      if (PathsConnected(*communicator.launching)) group = std::move(communicator.launching);
    } else if (communicator.state == State::kFinalizing) {
      if (communicator.groups.empty()) communicator.state = State::kFinalized;
      result = communicator.groups.empty() ? ncclSuccess : ncclInProgress;
    } else {
      result = ncclSuccess;
    }
  });
  return group == nullptr ? result : Launch(communicator, group);
}

}  // namespace

ncclResult_t Refuse(ncclResult_t result, std::string why) {
  const std::lock_guard lock(last_error_mutex);
  LastError() = std::move(why);
  return result;
}

ncclResult_t FailOnPurpose(ncclResult_t result, const char* call) {
  return Refuse(result, absl::StrCat(call, " failed on purpose"));
}

void Add(ncclComm& communicator) {
  Locked([&] { Communicators().insert(&communicator); });
  CountCommunicator(1);
}

void ForEach(const std::function<void(ncclComm&)>& function) {
  for (ncclComm* const communicator : Communicators()) function(*communicator);
}

int NextDelay() {
  static uint64_t delays = 0;
  delays = delays * 6364136223846793005U + 1442695040888963407U;
  return static_cast<int>(delays >> 62);
}

void Watch(ncclComm& communicator) {
  if (communicator.error != ncclSuccess) return;
  const Clique& clique = *communicator.clique;
  if (clique.HasLostRank()) {
    Fail(communicator,
         Refuse(ncclRemoteError, "the process of another rank has ended without a goodbye"));
  } else if (communicator.state == State::kStarting && clique.complete()) {
    communicator.state = State::kReady;
    if (!clique.SharesGpu()) return;
    Fail(communicator,
         Refuse(ncclInvalidUsage, "Duplicate GPU detected: several ranks on one CUDA device"));
  }
}

void WaitUntil(const char* call, const std::function<bool()>& done) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    bool is_done = false;
    Locked([&] { is_done = done(); });
    if (is_done) return;
    STAGECOACH_CHECK(std::chrono::steady_clock::now() - start < std::chrono::minutes(2),
                     absl::StrCat(call, " of a blocking communicator waits for its peers"));
    Progress();
    std::this_thread::yield();
  }
}

ncclResult_t Launch(ncclComm& communicator, const std::shared_ptr<Group>& group) {
  Locked([&] {
    static int64_t launches = 0;
    group->launch = ++launches;
    communicator.groups.push_back(group);
    if (communicator.groups_until_failure > 0 && --communicator.groups_until_failure == 0) {
      Fail(communicator, ncclRemoteError);
    }
  });
  for (const cudaStream_t stream : group->streams) {
    const cudaError_t error =
        Enqueue(stream, {.name = "ncclGroup",
                         .ready = [group, stream] { return MayEnd(*group, stream); },
                         .run = [group] { End(*group); }});
    if (error != cudaSuccess) {
      Locked([&] { Fail(communicator, ncclUnhandledCudaError); });
      return Refuse(ncclUnhandledCudaError, absl::StrCat("Cuda failure ", error));
    }
  }
  return ncclSuccess;
}

ncclResult_t CheckExists(const ncclComm* communicator) {
  bool exists = false;
  Locked([&] {
    exists = Communicators().contains(const_cast<ncclComm*>(communicator)) &&
             communicator->state != State::kGone;
  });
  if (exists) return ncclSuccess;
  return Refuse(ncclInvalidArgument, "corrupted comm object detected");
}

ncclResult_t CheckReady(const ncclComm* communicator) {
  const ncclResult_t exists = CheckExists(communicator);
  if (exists != ncclSuccess) return exists;
  ncclResult_t result = ncclSuccess;
  Locked([&] {
    const bool busy = communicator->state == State::kStarting ||
                      communicator->state == State::kFinalizing ||
                      communicator->launching != nullptr || communicator->polls_left > 0;
    result = communicator->error != ncclSuccess ? communicator->error
             : busy                             ? ncclInvalidArgument
                                                : ncclSuccess;
  });
  if (result == ncclSuccess) return result;
  return Refuse(result,
                "Attempt to use communicator before the previous operation returned ncclSuccess");
}

}  // namespace stagecoach::testing::cuda

namespace stand_in = stagecoach::testing::cuda;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  stand_in::Progress();
  if (stand_in::MustFail("ncclGetVersion")) {
    return stand_in::FailOnPurpose(ncclInternalError, "ncclGetVersion");
  }
  if (version == nullptr) return stand_in::Refuse(ncclInvalidArgument, "version is NULL");
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  stand_in::Progress();
  const ncclResult_t exists = stand_in::CheckExists(comm);
  if (exists != ncclSuccess) return exists;
  if (asyncError == nullptr) return stand_in::Refuse(ncclInvalidArgument, "asyncError is NULL");
  *asyncError = stand_in::Poll(*comm);
  return ncclSuccess;
}

const char* ncclGetErrorString(ncclResult_t result) {
  switch (result) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
    case ncclInternalError:
      return "internal error - please report this issue to the NCCL developers";
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclRemoteError:
      return "remote process exited or there was a network error";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

const char* ncclGetLastError(ncclComm_t /*comm*/) {
  thread_local std::string text;  // the last one of the process, for any communicator
  const std::lock_guard lock(stand_in::last_error_mutex);
  text = stand_in::LastError();
  return text.c_str();
}

}  // extern "C"
