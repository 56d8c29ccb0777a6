#include "tests/testing/cuda/nccl_communicator.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace stagecoach::testing::cuda {
namespace {

Clique::Path PathOf(const Transfer& transfer, int rank) {
  return transfer.is_send ? Clique::Path(rank, transfer.peer) : Clique::Path(transfer.peer, rank);
}

// The real library would write beyond a buffer, or hang.
void ExpectSame(const Clique::Path& path, const Transfer& send, const Transfer& receive) {
  STAGECOACH_CHECK(
      send.bytes == receive.bytes && send.type == receive.type,
      absl::StrCat("NCCL: rank ", path.first, " sends ", send.bytes, " bytes of type ",
                   static_cast<int>(send.type), " to rank ", path.second, ", which receives ",
                   receive.bytes, " bytes of type ", static_cast<int>(receive.type)));
}

// Ends of one path meet in the order in which they were posted.
void Meet(Clique& clique, const Clique::Path& path) {
  std::deque<Transfer*>& sends = clique.sends[path];
  std::deque<Transfer*>& receives = clique.receives[path];
  while (!sends.empty() && !receives.empty()) {
    Transfer& send = *sends.front();
    Transfer& receive = *receives.front();
    sends.pop_front();
    receives.pop_front();
    ExpectSame(path, send, receive);
    send.partner = &receive;
    receive.partner = &send;
  }
}

void Start(Group& group) {
  group.started = true;
  const ncclComm& communicator = *group.communicator;
  Clique& clique = *communicator.clique;
  for (Transfer& transfer : group.transfers) {
    const Clique::Path path = PathOf(transfer, communicator.rank);
    (transfer.is_send ? clique.sends : clique.receives)[path].push_back(&transfer);
    Meet(clique, path);
  }
}

bool SharesGpu(const Clique& clique) {
  std::set<int> gpus;
  for (const ncclComm_t member : clique.members) gpus.insert(member->gpu);
  return gpus.size() < clique.members.size();
}

}  // namespace

void Join(ncclComm& communicator) {
  Clique& clique = *communicator.clique;
  clique.members[static_cast<size_t>(communicator.rank)] = &communicator;
  if (++clique.joined < clique.ranks) return;
  const bool refused = SharesGpu(clique);
  for (const ncclComm_t member : clique.members) {
    if (refused) {
      member->error = ncclInvalidUsage;
    } else if (member->state == ncclComm::State::kStarting) {
      member->state = ncclComm::State::kReady;
    }
  }
}

void AskForPaths(const Group& group) {
  Clique& clique = *group.communicator->clique;
  for (const Transfer& transfer : group.transfers) {
    (transfer.is_send ? clique.sends_asked : clique.receives_asked)
        .insert(PathOf(transfer, group.communicator->rank));
  }
}

bool PathsConnected(const Group& group) {
  const Clique& clique = *group.communicator->clique;
  return std::all_of(group.transfers.begin(), group.transfers.end(), [&](const Transfer& transfer) {
    const Clique::Path path = PathOf(transfer, group.communicator->rank);
    return clique.sends_asked.contains(path) && clique.receives_asked.contains(path);
  });
}

bool MayEnd(Group& group, cudaStream_t stream) {
  const ncclComm& communicator = *group.communicator;
  if (group.ended || communicator.state == ncclComm::State::kGone) return true;
  if (communicator.error != ncclSuccess) return false;
  group.arrived.insert(stream);
  if (!group.started && communicator.groups.front().get() == &group &&
      group.arrived == group.streams) {
    Start(group);
  }
  return group.started &&
         std::all_of(group.transfers.begin(), group.transfers.end(), [](const Transfer& transfer) {
           return transfer.partner != nullptr && !transfer.lost;
         });
}

void End(Group& group) {
  ncclComm& communicator = *group.communicator;
  if (group.ended || communicator.state == ncclComm::State::kGone) return;
  // Whichever group ends first copies: until then both ends occupy their streams.
  for (Transfer& transfer : group.transfers) {
    if (transfer.done) continue;
    const Transfer& send = transfer.is_send ? transfer : *transfer.partner;
    const Transfer& receive = transfer.is_send ? *transfer.partner : transfer;
    std::memmove(receive.data, send.data, static_cast<size_t>(send.bytes));
    transfer.done = true;
    transfer.partner->done = true;
  }
  group.ended = true;
  communicator.groups.pop_front();
}

void Leave(ncclComm& communicator) {
  Clique& clique = *communicator.clique;
  for (const std::shared_ptr<Group>& group : communicator.groups) {
    if (!group->started) continue;
    for (Transfer& transfer : group->transfers) {
      if (transfer.done || transfer.lost) continue;
      if (transfer.partner != nullptr) {
        transfer.lost = transfer.partner->lost = true;
        continue;
      }
      auto& waiting =
          (transfer.is_send ? clique.sends : clique.receives)[PathOf(transfer, communicator.rank)];
      waiting.erase(std::remove(waiting.begin(), waiting.end(), &transfer), waiting.end());
    }
  }
}

void Fail(ncclComm& communicator, ncclResult_t error) {
  if (communicator.error != ncclSuccess) return;
  Leave(communicator);
  communicator.error = error;
}

}  // namespace stagecoach::testing::cuda
