#include <nccl.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/cuda/machine.h"
#include "tests/testing/cuda/nccl/calls.h"
#include "tests/testing/cuda/stand_in.h"

// The calls of NCCL with which communicators begin and end.
namespace stagecoach::testing::cuda {
namespace {

using State = ncclComm::State;

// The cliques of the ids made in this process, until all ranks have joined them.
std::vector<std::unique_ptr<Clique>>& Cliques() {
  static auto* const cliques = new std::vector<std::unique_ptr<Clique>>;
  return *cliques;
}

void Release(ncclComm& communicator, const char* call) {
  std::unique_ptr<Clique> clique;
  Locked([&] {
    communicator.state = State::kGone;
    clique = std::move(communicator.clique);
    communicator.launching = nullptr;
    communicator.groups.clear();
  });
  clique->Leave();
  if (Machine::Get().options().nccl_end_waits) {
    WaitUntil(call, [&] { return clique->IsLast(); });
  }
  CountCommunicator(-1);
}

// Makes a new id. Cliques of ids that have served their purpose are destroyed.
void MakeId(ncclUniqueId* id) {
  Locked([id] {
    std::vector<std::unique_ptr<Clique>>& cliques = Cliques();
    std::erase_if(cliques,
                  [](const auto& clique) { return clique->complete() || clique->deserted(); });
    cliques.push_back(Clique::Make(id));
  });
}

ncclResult_t CheckConfig(const ncclConfig_t* config) {
  const ncclConfig_t initialized = NCCL_CONFIG_INITIALIZER;
  if (config == nullptr || (config->magic == initialized.magic && config->size > 0)) {
    return ncclSuccess;
  }
  return Refuse(ncclInvalidArgument,
                "ncclConfig_t argument not initialized via NCCL_CONFIG_INITIALIZER");
}

// Joins the clique of the id.
ncclResult_t Enter(const ncclUniqueId& id, ncclComm& communicator) {
  communicator.clique = Clique::Open(id);
  if (communicator.clique == nullptr) {
    return Refuse(ncclSystemError, "no root answers at the address in this ncclUniqueId");
  }
  if (!communicator.clique->Join(communicator.rank, communicator.ranks, communicator.gpu)) {
    return Refuse(ncclInternalError,
                  absl::StrCat("rank ", communicator.rank, " of ", communicator.ranks,
                               " has already come, or others count other ranks"));
  }
  return ncclSuccess;
}

// Implements ncclCommInitRankConfig.
ncclResult_t Create(ncclComm_t* handle, int ranks, const ncclUniqueId& id, int rank,
                    const ncclConfig_t* config) {
  if (handle == nullptr) return Refuse(ncclInvalidArgument, "comm is NULL");
  *handle = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return Refuse(ncclInvalidArgument, absl::StrCat("invalid rank requested: ", rank, "/", ranks));
  }
  const ncclResult_t checked = CheckConfig(config);
  if (checked != ncclSuccess) return checked;
  if (InGroup()) {
    return Refuse(ncclInvalidUsage, "the stand-in starts no communicators within a group");
  }
  auto communicator = std::make_unique<ncclComm>();
  communicator->ranks = ranks;
  communicator->rank = rank;
  communicator->gpu = CurrentGpu();
  communicator->blocking = config == nullptr || config->blocking != 0;  // undefined: blocking
  if (communicator->gpu < 0) return Refuse(ncclUnhandledCudaError, "no CUDA driver");
  const ncclResult_t entry = Enter(id, *communicator);
  if (entry != ncclSuccess) return entry;
  Locked([&] { communicator->polls_left = NextDelay(); });
  ncclComm& made = *communicator.release();
  Add(made);
  if (made.blocking) {
    WaitUntil("ncclCommInitRankConfig", [&] {
      Watch(made);
      return made.state != State::kStarting || made.error != ncclSuccess;
    });
    made.polls_left = 0;
    if (made.error != ncclSuccess) {
      Release(made, "ncclCommInitRankConfig");
      return made.error;
    }
  }
  *handle = &made;
  return made.blocking ? ncclSuccess : ncclInProgress;
}

}  // namespace

void FailCommunicator(int rank, int64_t groups) {
  Locked([&] {
    ForEach([&](ncclComm& communicator) {
      if (communicator.rank != rank || communicator.state == State::kGone) return;
      communicator.groups_until_failure = groups;
      if (groups == 0) Fail(communicator, ncclRemoteError);
    });
  });
}

}  // namespace stagecoach::testing::cuda

namespace stand_in = stagecoach::testing::cuda;

extern "C" {

ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  stand_in::Progress();
  if (stand_in::MustFail("ncclGetUniqueId")) {
    return stand_in::FailOnPurpose(ncclSystemError, "ncclGetUniqueId");
  }
  if (uniqueId == nullptr) return stand_in::Refuse(ncclInvalidArgument, "uniqueId is NULL");
  stand_in::MakeId(uniqueId);
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

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  stand_in::StopIfAsked("ncclCommFinalize");
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
  stand_in::StopIfAsked("ncclCommDestroy");
  stand_in::Progress();
  if (comm == nullptr) return ncclSuccess;
  const ncclResult_t ready = stand_in::CheckReady(comm);
  if (ready != ncclSuccess) return ready;
  // This finalizes first if needed, and then blocks.
  stand_in::WaitUntil("ncclCommDestroy", [comm] { return comm->groups.empty(); });
  stand_in::Release(*comm, "ncclCommDestroy");
  return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  stand_in::StopIfAsked("ncclCommAbort");
  stand_in::Progress();
  if (comm == nullptr) return ncclSuccess;
  const ncclResult_t exists = stand_in::CheckExists(comm);
  if (exists != ncclSuccess) return exists;
  stand_in::Release(*comm, "ncclCommAbort");
  return ncclSuccess;
}

}  // extern "C"
