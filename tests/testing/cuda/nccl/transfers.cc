#include <nccl.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/cuda/nccl/calls.h"
#include "tests/testing/cuda/stand_in.h"

// The calls of NCCL that send, receive and group.
namespace stagecoach::testing::cuda {
namespace {

using State = ncclComm::State;

// The transfers posted between ncclGroupStart and ncclGroupEnd.
struct ThreadGroup {
  int depth = 0;
  ncclResult_t error = ncclSuccess;
  std::vector<std::pair<ncclComm_t, Transfer>> posted;
};
thread_local ThreadGroup thread_group;

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
  if (transfer.peer < 0 || transfer.peer >= communicator.ranks) {
    return Refuse(ncclInvalidArgument, absl::StrCat(call, ": invalid peer ", transfer.peer));
  }
  if (GpuOfStream(transfer.stream) != communicator.gpu) {
    return Refuse(ncclUnhandledCudaError, absl::StrCat(call, ": not a stream of the GPU"));
  }
  const bool is_ours = transfer.sum != nullptr && !transfer.is_send;  // the others' addends
  if (transfer.bytes == 0 || is_ours) return ncclSuccess;
  if (transfer.data == nullptr) {
    return Refuse(ncclInvalidArgument, absl::StrCat(call, ": the buffer is NULL"));
  }
  // Otherwise the GPU would fault, or access another GPU's memory.
  STAGECOACH_CHECK(
      GpuOfMemory(transfer.data, transfer.bytes) == communicator.gpu,
      absl::StrCat(call, ": rank ", communicator.rank, ", peer ", transfer.peer, ": the ",
                   transfer.bytes, " bytes are not in memory of the communicator's GPU"));
  return ncclSuccess;
}

// Posts the transfers of one communicator as a group of it.
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

// `transfers_of` is called once the communicator can be used.
ncclResult_t Post(const char* call, ncclDataType_t type, ncclComm_t communicator,
                  const std::function<std::vector<Transfer>()>& transfers_of) {
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
  std::vector<std::pair<ncclComm_t, Transfer>> posted;
  for (const Transfer& transfer : transfers_of()) {
    const ncclResult_t checked = CheckTransfer(call, *communicator, transfer);
    if (checked != ncclSuccess) return refused(checked);
    posted.emplace_back(communicator, transfer);
  }
  if (!grouped) return PostAll(posted);
  thread_group.posted.insert(thread_group.posted.end(), posted.begin(), posted.end());
  return ncclSuccess;
}

ncclResult_t PostOne(const char* call, bool is_send, const void* data, size_t count,
                     ncclDataType_t type, int peer, ncclComm_t communicator, cudaStream_t stream) {
  return Post(call, type, communicator, [&] {
    return std::vector<Transfer>{{.is_send = is_send,
                                  .peer = peer,
                                  // Only receives write.
                                  .data = static_cast<std::byte*>(const_cast<void*>(data)),
                                  .bytes = static_cast<int64_t>(count) * BytesOf(type),
                                  .type = type,
                                  .stream = stream}};
  });
}

ncclResult_t PostSum(float* data, size_t count, ncclComm_t communicator, cudaStream_t stream) {
  return Post("ncclAllReduce", ncclFloat32, communicator, [&] {
    const auto sum = std::make_shared<Sum>();
    sum->data = data;
    sum->elements = static_cast<int64_t>(count);
    Transfer transfer = {.bytes = sum->elements * BytesOf(ncclFloat32),
                         .type = ncclFloat32,
                         .stream = stream,
                         .sum = sum};
    std::vector<Transfer> transfers;
    for (transfer.peer = 0; transfer.peer < communicator->ranks; ++transfer.peer) {
      if (transfer.peer == communicator->rank) continue;
      transfer.is_send = true;
      transfer.data = reinterpret_cast<std::byte*>(data);
      transfers.push_back(transfer);
      transfer.is_send = false;
      std::vector<float>& theirs = sum->theirs[transfer.peer];
      theirs.resize(count);
      transfer.data = reinterpret_cast<std::byte*>(theirs.data());
      transfers.push_back(transfer);
    }
    return transfers;
  });
}

}  // namespace

bool InGroup() { return thread_group.depth > 0; }

}  // namespace stagecoach::testing::cuda

namespace stand_in = stagecoach::testing::cuda;

extern "C" {

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
  // If any part fails, nothing is posted.
  const stand_in::ThreadGroup ended = std::exchange(group, {});
  return ended.error != ncclSuccess ? ended.error : stand_in::PostAll(ended.posted);
}

ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return stand_in::PostOne("ncclSend", true, sendbuff, count, datatype, peer, comm, stream);
}

ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  return stand_in::PostOne("ncclRecv", false, recvbuff, count, datatype, peer, comm, stream);
}

ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  STAGECOACH_CHECK(sendbuff == recvbuff && datatype == ncclFloat32 && op == ncclSum,
                   "ncclAllReduce of the stand-in adds float32 in place, and no more");
  return stand_in::PostSum(static_cast<float*>(recvbuff), count, comm, stream);
}

}  // extern "C"
