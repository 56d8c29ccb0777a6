#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/cuda/nccl_communicator.h"
#include "tests/testing/cuda/stand_in.h"

// The calls of NCCL. As in the real library, a nonblocking communicator must be asked for its state
// until it is no longer ncclInProgress before it is used again, and before its streams are: here
// what was posted gets into the streams no sooner. Stricter than the real library: the first
// exchange with a peer always waits until the peer has posted the other end.
namespace stagecoach::testing::cuda {
namespace {

using State = ncclComm::State;

// What is posted between ncclGroupStart and ncclGroupEnd.
struct ThreadGroup {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<std::pair<ncclComm_t, Transfer>> posted;
};
thread_local ThreadGroup thread_group;

// All that there ever was: communicators stay, so that calls with one that has gone are seen.
struct Universe {
  std::map<std::string, std::shared_ptr<Clique>> cliques;  // by id; null: nobody has come yet
  std::set<const ncclComm*> communicators;
  uint64_t ids = 0;
  uint64_t delays = 0;
};
Universe& All() {
  static auto* const universe = new Universe;
  return *universe;
}

std::mutex last_error_mutex;
std::string& LastError() {
  static auto* const text = new std::string;
  return *text;
}

ncclResult_t Refuse(ncclResult_t result, std::string why) {
  const std::lock_guard lock(last_error_mutex);
  LastError() = std::move(why);
  return result;
}

ncclResult_t FailOnPurpose(ncclResult_t result, const char* call) {
  return Refuse(result, absl::StrCat(call, " failed on purpose"));
}

// Of 0 to 3 polls; the same in every run of one thread.
int NextDelay() {
  uint64_t& delays = All().delays;
  delays = delays * 6364136223846793005U + 1442695040888963407U;
  return static_cast<int>(delays >> 62);
}

// What of the real library would block for ever must not keep a test from ending.
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

// Puts what was posted into its streams.
ncclResult_t Launch(ncclComm& communicator, const std::shared_ptr<Group>& group) {
  Locked([&] {
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

// Does what a nonblocking communicator has been asked for, if it is time, and says how it is.
ncclResult_t Poll(ncclComm& communicator) {
  std::shared_ptr<Group> group;
  ncclResult_t result = ncclInProgress;
  Locked([&] {
    const bool delayed = communicator.polls_left > 0;
    if (communicator.error != ncclSuccess) {
      result = communicator.error;
    } else if (communicator.state == State::kStarting || delayed) {
      if (communicator.state != State::kStarting) --communicator.polls_left;
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

// Whether the communicator is there at all.
ncclResult_t CheckExists(const ncclComm* communicator) {
  bool exists = false;
  Locked([&] {
    exists = All().communicators.contains(communicator) && communicator->state != State::kGone;
  });
  if (exists) return ncclSuccess;
  return Refuse(ncclInvalidArgument, "corrupted comm object detected");
}

// And whether it is free for another call.
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

void Release(ncclComm& communicator) {
  Locked([&] {
    Leave(communicator);
    communicator.state = State::kGone;
    communicator.launching = nullptr;
    communicator.groups.clear();
  });
  CountCommunicator(-1);
}

int64_t BytesOf(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
    case ncclFloat8e4m3:
    case ncclFloat8e5m2:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 0;
  }
}

ncclResult_t CheckTransfer(const char* call, const ncclComm& communicator,
                           const Transfer& transfer) {
  if (communicator.state != State::kReady) {
    return Refuse(ncclInvalidUsage, absl::StrCat(call, ": the communicator has been finalized"));
  }
  if (transfer.peer < 0 || transfer.peer >= communicator.clique->ranks) {
    return Refuse(ncclInvalidArgument, absl::StrCat(call, ": invalid peer ", transfer.peer));
  }
  if (GpuOfStream(transfer.stream) != communicator.gpu) {
    return Refuse(ncclUnhandledCudaError, absl::StrCat(call, ": not a stream of the GPU"));
  }
  if (transfer.bytes == 0) return ncclSuccess;
  if (transfer.data == nullptr) {
    return Refuse(ncclInvalidArgument, absl::StrCat(call, ": the buffer is NULL"));
  }
  // The GPU would fault, or reach into another GPU's memory.
  STAGECOACH_CHECK(
      GpuOfMemory(transfer.data, transfer.bytes) == communicator.gpu,
      absl::StrCat(call, ": rank ", communicator.rank, ", peer ", transfer.peer, ": the ",
                   transfer.bytes, " bytes are not in memory of the communicator's GPU"));
  return ncclSuccess;
}

// The transfers of one communicator, as a group of it.
ncclResult_t PostGroup(ncclComm& communicator, const std::shared_ptr<Group>& group) {
  if (communicator.blocking) return Launch(communicator, group);
  Locked([&] {
    AskForPaths(*group);
    communicator.launching = group;
    communicator.polls_left = NextDelay();
  });
  return ncclInProgress;
}

ncclResult_t PostAll(const std::vector<std::pair<ncclComm_t, Transfer>>& posted) {
  std::vector<std::shared_ptr<Group>> groups;
  for (const auto& [communicator, transfer] : posted) {
    auto found = std::find_if(groups.begin(), groups.end(), [of = communicator](const auto& group) {
      return group->communicator == of;
    });
    if (found == groups.end()) {
      found = groups.insert(groups.end(), std::make_shared<Group>(communicator));
    }
    (*found)->transfers.push_back(transfer);
    (*found)->streams.insert(transfer.stream);
  }
  ncclResult_t result = ncclSuccess;
  for (const std::shared_ptr<Group>& group : groups) {
    const ncclResult_t posted_one = PostGroup(*group->communicator, group);
    if (result == ncclSuccess || result == ncclInProgress) {
      result = posted_one == ncclSuccess ? result : posted_one;
    }
  }
  return result;
}

ncclResult_t Post(const char* call, bool is_send, const void* data, size_t count,
                  ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream) {
  Progress();
  const bool grouped = thread_group.depth > 0;
  const auto refused = [grouped](ncclResult_t result) {
    if (grouped && thread_group.error == ncclSuccess) thread_group.error = result;
    return result;
  };
  if (MustFail(call)) return refused(FailOnPurpose(ncclInternalError, call));
  const ncclResult_t ready = CheckReady(communicator);
  if (ready != ncclSuccess) return refused(ready);
  if (BytesOf(type) == 0) {
    return refused(Refuse(ncclInvalidArgument, absl::StrCat(call, ": invalid type ", type)));
  }
  const Transfer transfer = {.is_send = is_send,
                             .peer = peer,
                             // Only receives write.
                             .data = static_cast<std::byte*>(const_cast<void*>(data)),
                             .bytes = static_cast<int64_t>(count) * BytesOf(type),
                             .type = type,
                             .stream = stream};
  const ncclResult_t checked = CheckTransfer(call, *communicator, transfer);
  if (checked != ncclSuccess) return refused(checked);
  if (!grouped) return PostAll({{communicator, transfer}});
  thread_group.posted.emplace_back(communicator, transfer);
  return ncclSuccess;
}

ncclResult_t CheckConfig(const ncclConfig_t* config) {
  const ncclConfig_t initialized = NCCL_CONFIG_INITIALIZER;
  if (config == nullptr || (config->magic == initialized.magic && config->size > 0)) {
    return ncclSuccess;
  }
  return Refuse(ncclInvalidArgument,
                "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
}

// Enters the clique of the id, which the first to come makes.
ncclResult_t Enter(const std::string& id, int ranks, ncclComm& communicator) {
  ncclResult_t result = ncclSuccess;
  std::string why;
  Locked([&] {
    const auto found = All().cliques.find(id);
    if (found == All().cliques.end()) {
      result = ncclSystemError;
      why = "no root answers at the address in this ncclUniqueId";
      return;
    }
    std::shared_ptr<Clique>& clique = found->second;
    if (clique == nullptr) clique = std::make_shared<Clique>(ranks);
    if (clique->ranks != ranks || clique->members[static_cast<size_t>(communicator.rank)]) {
      result = ncclInternalError;
      why = absl::StrCat("rank ", communicator.rank, " of ", ranks,
                         " has already come, or others count other ranks");
      return;
    }
    communicator.clique = clique;
    communicator.polls_left = NextDelay();
    All().communicators.insert(&communicator);
    Join(communicator);
  });
  return result == ncclSuccess ? result : Refuse(result, std::move(why));
}

constexpr char kDuplicate[] = "Duplicate GPU detected: several ranks on one CUDA device";

ncclResult_t Create(ncclComm_t* handle, int ranks, const ncclUniqueId& id, int rank,
                    const ncclConfig_t* config) {
  if (handle == nullptr) return Refuse(ncclInvalidArgument, "comm is NULL");
  *handle = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return Refuse(ncclInvalidArgument, absl::StrCat("invalid rank requested: ", rank, "/", ranks));
  }
  const ncclResult_t checked = CheckConfig(config);
  if (checked != ncclSuccess) return checked;
  if (thread_group.depth > 0) {
    return Refuse(ncclInvalidUsage, "the stand-in starts no communicators within a group");
  }
  auto communicator = std::make_unique<ncclComm>();
  communicator->rank = rank;
  communicator->gpu = CurrentGpu();
  communicator->blocking = config == nullptr || config->blocking != 0;  // undefined: blocking
  if (communicator->gpu < 0) return Refuse(ncclUnhandledCudaError, "no CUDA driver");
  const ncclResult_t entered = Enter({id.internal, sizeof(id.internal)}, ranks, *communicator);
  if (entered != ncclSuccess) return entered;
  ncclComm& made = *communicator.release();
  CountCommunicator(1);
  if (made.blocking) {
    WaitUntil("ncclCommInitRankConfig",
              [&] { return made.state != State::kStarting || made.error != ncclSuccess; });
    made.polls_left = 0;
    if (made.error != ncclSuccess) {
      Release(made);
      return Refuse(made.error, kDuplicate);
    }
  }
  *handle = &made;
  return made.blocking ? ncclSuccess : ncclInProgress;
}

}  // namespace

void FailCommunicator(int rank, int64_t groups) {
  Locked([&] {
    for (const ncclComm* const known : All().communicators) {
      auto* const communicator = const_cast<ncclComm*>(known);
      if (communicator->rank != rank || communicator->state == State::kGone) continue;
      communicator->groups_until_failure = groups;
      if (groups == 0) Fail(*communicator, ncclRemoteError);
    }
  });
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

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  stand_in::Progress();
  if (stand_in::MustFail("ncclGetUniqueId")) {
    return stand_in::FailOnPurpose(ncclSystemError, "ncclGetUniqueId");
  }
  if (uniqueId == nullptr) return stand_in::Refuse(ncclInvalidArgument, "uniqueId is NULL");
  stand_in::Locked([uniqueId] {
    // Bytes of every value, as in the real library's, which holds an address.
    const uint64_t number = ++stand_in::All().ids;
    for (size_t i = 0; i < sizeof(uniqueId->internal); ++i) {
      uniqueId->internal[i] = static_cast<char>(number * 0x9E3779B97F4A7C15U >> (i % 8 * 8));
    }
    stand_in::All().cliques[{uniqueId->internal, sizeof(uniqueId->internal)}] = nullptr;
  });
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config) {
  stand_in::Progress();
  if (stand_in::MustFail("ncclCommInitRankConfig")) {
    if (comm != nullptr) *comm = nullptr;
    return stand_in::FailOnPurpose(ncclSystemError, "ncclCommInitRankConfig");
  }
  return stand_in::Create(comm, nranks, commId, rank, config);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  stand_in::Progress();
  const ncclResult_t exists = stand_in::CheckExists(comm);
  if (exists != ncclSuccess) return exists;
  if (asyncError == nullptr) return stand_in::Refuse(ncclInvalidArgument, "asyncError is NULL");
  *asyncError = stand_in::Poll(*comm);
  if (*asyncError == ncclInvalidUsage) stand_in::Refuse(ncclInvalidUsage, stand_in::kDuplicate);
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  stand_in::Progress();
  const ncclResult_t ready = stand_in::CheckReady(comm);
  if (ready != ncclSuccess) return ready;
  if (comm->state == ncclComm::State::kFinalized) {
    return stand_in::Refuse(ncclInvalidArgument, "the communicator has been finalized");
  }
  stand_in::Locked([comm] {
    comm->state = ncclComm::State::kFinalizing;
    comm->polls_left = comm->blocking ? 0 : stand_in::NextDelay();
  });
  if (!comm->blocking) return ncclInProgress;
  stand_in::WaitUntil("ncclCommFinalize", [comm] { return comm->groups.empty(); });
  stand_in::Locked([comm] { comm->state = ncclComm::State::kFinalized; });
  return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  stand_in::Progress();
  if (comm == nullptr) return ncclSuccess;
  const ncclResult_t ready = stand_in::CheckReady(comm);
  if (ready != ncclSuccess) return ready;
  // Finalizes what has not been, and then blocks.
  stand_in::WaitUntil("ncclCommDestroy", [comm] { return comm->groups.empty(); });
  stand_in::Release(*comm);
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  stand_in::Progress();
  if (comm == nullptr) return ncclSuccess;
  const ncclResult_t exists = stand_in::CheckExists(comm);
  if (exists != ncclSuccess) return exists;
  stand_in::Release(*comm);
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  stand_in::Progress();
  if (stand_in::MustFail("ncclGroupStart")) {
    return stand_in::FailOnPurpose(ncclInternalError, "ncclGroupStart");
  }
  ++stand_in::thread_group.depth;
  return ncclSuccess;
}

ncclResult_t ncclGroupEnd() {
  stand_in::Progress();
  stand_in::ThreadGroup& group = stand_in::thread_group;
  const bool must_fail = stand_in::MustFail("ncclGroupEnd");
  if (group.depth == 0) {
    return stand_in::Refuse(ncclInvalidUsage, "ncclGroupEnd: not in a group call.");
  }
  if (must_fail && group.error == ncclSuccess) {
    group.error = stand_in::FailOnPurpose(ncclInternalError, "ncclGroupEnd");
  }
  if (--group.depth > 0) return group.error;
  // What failed in any part posts nothing.
  const stand_in::ThreadGroup ended = std::exchange(group, {});
  return ended.error != ncclSuccess ? ended.error : stand_in::PostAll(ended.posted);
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return stand_in::Post("ncclSend", true, sendbuff, count, datatype, peer, comm, stream);
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return stand_in::Post("ncclRecv", false, recvbuff, count, datatype, peer, comm, stream);
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
  thread_local std::string text;  // the last of the process, whatever the communicator
  const std::lock_guard lock(stand_in::last_error_mutex);
  text = stand_in::LastError();
  return text.c_str();
}

}  // extern "C"
