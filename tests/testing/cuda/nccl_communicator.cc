#include "tests/testing/cuda/nccl_communicator.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace stagecoach::testing::cuda {
namespace {

Clique::Path& PathOf(const ncclComm& communicator, const Transfer& transfer) {
  const int rank = communicator.rank;
  return transfer.is_send ? communicator.clique->path(rank, transfer.peer)
                          : communicator.clique->path(transfer.peer, rank);
}

ncclComm::Count& CountOf(ncclComm& communicator, const Transfer& transfer) {
  return communicator.counts[{transfer.is_send, transfer.peer}];
}

// A transfer of no bytes has a chunk as well: both ends must be there.
int64_t ChunksOf(const Transfer& transfer) {
  constexpr auto kBytes = static_cast<int64_t>(Clique::kChunkBytes);
  return std::max<int64_t>(1, (transfer.bytes + kBytes - 1) / kBytes);
}

// The real library would write beyond a buffer, or hang.
void ExpectSame(const ncclComm& communicator, const Transfer& transfer) {
  const Clique::Path& path = PathOf(communicator, transfer);
  const int from = transfer.is_send ? communicator.rank : transfer.peer;
  const int to = transfer.is_send ? transfer.peer : communicator.rank;
  STAGECOACH_CHECK(path.send.bytes == path.receive.bytes && path.send.type == path.receive.type,
                   absl::StrCat("NCCL: rank ", from, " sends ", path.send.bytes, " bytes of type ",
                                path.send.type, " to rank ", to, ", which receives ",
                                path.receive.bytes, " bytes of type ", path.receive.type));
}

// Moves the next chunk of an end, if it is time; true once all have been moved.
bool MoveChunk(Clique::Path& path, Transfer& transfer) {
  const int64_t chunks = ChunksOf(transfer);
  const int64_t at = transfer.chunks * static_cast<int64_t>(Clique::kChunkBytes);
  const auto bytes = static_cast<size_t>(
      std::min<int64_t>(transfer.bytes - at, static_cast<int64_t>(Clique::kChunkBytes)));
  const bool full = path.filled > path.emptied;
  if (!transfer.is_send) {
    if (!full) return false;
    if (transfer.bytes > 0) std::memcpy(transfer.data + at, path.chunk.data(), bytes);
    ++path.emptied;
    return ++transfer.chunks == chunks;
  }
  if (full) return false;
  if (transfer.chunks == chunks) return true;
  if (transfer.bytes > 0) std::memcpy(path.chunk.data(), transfer.data + at, bytes);
  ++path.filled;
  ++transfer.chunks;
  return false;
}

// Ends of one path meet in the order in which they were posted.
void Advance(ncclComm& communicator, Transfer& transfer) {
  ncclComm::Count& count = CountOf(communicator, transfer);
  if (transfer.done || transfer.number != count.done + 1) return;
  Clique::Path& path = PathOf(communicator, transfer);
  Clique::End& own = transfer.is_send ? path.send : path.receive;
  const Clique::End& other = transfer.is_send ? path.receive : path.send;
  if (own.transfer != transfer.number) {
    own.bytes = transfer.bytes;
    own.type = transfer.type;
    own.transfer = transfer.number;
  }
  // The other may be ahead, if this end is all but done.
  if (other.transfer < transfer.number) return;
  if (transfer.chunks == 0) ExpectSame(communicator, transfer);
  if (!MoveChunk(path, transfer)) return;
  transfer.done = true;
  ++count.done;
}

void Start(Group& group) {
  group.started = true;
  for (Transfer& transfer : group.transfers) {
    transfer.number = ++CountOf(*group.communicator, transfer).started;
  }
}

}  // namespace

void AskForPaths(const Group& group) {
  for (const Transfer& transfer : group.transfers) {
    Clique::Path& path = PathOf(*group.communicator, transfer);
    (transfer.is_send ? path.send : path.receive).asked = true;
  }
}

bool PathsConnected(const Group& group) {
  return std::all_of(group.transfers.begin(), group.transfers.end(), [&](const Transfer& transfer) {
    const Clique::Path& path = PathOf(*group.communicator, transfer);
    return path.send.asked && path.receive.asked;
  });
}

bool MayEnd(Group& group, cudaStream_t stream) {
  ncclComm& communicator = *group.communicator;
  if (group.ended || communicator.state == ncclComm::State::kGone) return true;
  if (communicator.error != ncclSuccess) return false;
  group.arrived.insert(stream);
  if (!group.started && communicator.groups.front().get() == &group &&
      group.arrived == group.streams) {
    Start(group);
  }
  if (!group.started) return false;
  for (Transfer& transfer : group.transfers) Advance(communicator, transfer);
  return std::all_of(group.transfers.begin(), group.transfers.end(),
                     [](const Transfer& transfer) { return transfer.done; });
}

void End(Group& group) {
  ncclComm& communicator = *group.communicator;
  if (group.ended || communicator.state == ncclComm::State::kGone) return;
  group.ended = true;
  communicator.groups.pop_front();
}

void Fail(ncclComm& communicator, ncclResult_t error) {
  if (communicator.error != ncclSuccess) return;
  communicator.clique->Leave();
  communicator.error = error;
}

}  // namespace stagecoach::testing::cuda
