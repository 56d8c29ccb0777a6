#include "tests/testing/cuda/nccl/communicator.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/cuda/machine.h"
#include "tests/testing/cuda/nccl/calls.h"

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

// Returns the number of chunks; a transfer of no bytes has one as well, since both ends must be
// there.
int64_t ChunksOf(const Transfer& transfer) {
  constexpr auto kBytes = static_cast<int64_t>(Clique::kChunkBytes);
  return std::max<int64_t>(1, (transfer.bytes + kBytes - 1) / kBytes);
}

// Aborts where the real library would write beyond a buffer, or hang.
void ExpectSame(const ncclComm& communicator, const Transfer& transfer) {
  const Clique::Path& path = PathOf(communicator, transfer);
  const int from = transfer.is_send ? communicator.rank : transfer.peer;
  const int to = transfer.is_send ? transfer.peer : communicator.rank;
  STAGECOACH_CHECK(path.send.bytes == path.receive.bytes && path.send.type == path.receive.type,
                   absl::StrCat("NCCL: rank ", from, " sends ", path.send.bytes, " bytes of type ",
                                path.send.type, " to rank ", to, ", which receives ",
                                path.receive.bytes, " bytes of type ", path.receive.type));
  STAGECOACH_CHECK(
      !Machine::Get().options().nccl_groups_match ||
          (path.send.pass == path.receive.pass && path.send.forth == path.receive.back &&
           path.send.back == path.receive.forth),
      absl::StrCat("NCCL: groups of rank ", from, " and rank ", to,
                   " differ in what the two exchange: the message is number ", path.send.pass,
                   " of ", path.send.forth, " there, with ", path.send.back,
                   " in return, and number ", path.receive.pass, " of ", path.receive.back,
                   " here, with ", path.receive.forth, " in return"));
}

// Moves the next chunk of an end, if it is time; returns true once all have been moved.
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

int64_t CountIn(const Group& group, bool is_send, int peer) {
  return std::count_if(group.transfers.begin(), group.transfers.end(), [&](const Transfer& other) {
    return other.is_send == is_send && other.peer == peer;
  });
}

// Returns whether a batch before that of `transfer` is still being performed on its channel.
bool IsBehindABatch(const Group& group, const Transfer& transfer) {
  return std::any_of(group.transfers.begin(), group.transfers.end(), [&](const Transfer& other) {
    return !other.done && other.place.channel == transfer.place.channel &&
           other.place.batch < transfer.place.batch;
  });
}

// Ends of one path meet in the order in which they were posted.
void Advance(const Group& group, Transfer& transfer) {
  ncclComm& communicator = *group.communicator;
  ncclComm::Count& count = CountOf(communicator, transfer);
  if (transfer.done || transfer.number != count.done + 1) return;
  if (IsBehindABatch(group, transfer)) return;
  Clique::Path& path = PathOf(communicator, transfer);
  Clique::End& own = transfer.is_send ? path.send : path.receive;
  const Clique::End& other = transfer.is_send ? path.receive : path.send;
  if (own.transfer != transfer.number) {
    own.bytes = transfer.bytes;
    own.type = transfer.type;
    own.pass = transfer.pass;
    own.forth = CountIn(group, /*is_send=*/true, transfer.peer);
    own.back = CountIn(group, /*is_send=*/false, transfer.peer);
    own.transfer = transfer.number;
  }
  // The other may be ahead, if this end is almost done.
  if (other.transfer < transfer.number) return;
  if (transfer.chunks == 0) ExpectSame(communicator, transfer);
  if (!MoveChunk(path, transfer)) return;
  transfer.done = true;
  ++count.done;
}

// Adds up as a ring does: each of as many segments as there are ranks begins at another rank, so
// that the bits depend on the number of ranks.
void AddUp(const ncclComm& communicator, Sum& sum) {
  const int ranks = communicator.ranks;
  for (int64_t i = 0; i < sum.elements; ++i) {
    const auto first = static_cast<int>(i * ranks / sum.elements);
    const auto addend = [&](int distance) {
      const int rank = (first + distance) % ranks;
      return rank == communicator.rank ? sum.data[i] : sum.theirs.at(rank)[static_cast<size_t>(i)];
    };
    float total = addend(0);
    for (int distance = 1; distance < ranks; ++distance) total += addend(distance);
    sum.data[i] = total;
  }
}

void Start(Group& group) {
  group.started = true;
  ncclComm& communicator = *group.communicator;
  std::vector<NcclEnd> ends;
  for (const Transfer& transfer : group.transfers)
    ends.push_back({transfer.is_send, transfer.peer});
  const std::vector<NcclPlace> places = NcclPlaces(ends, communicator.rank, communicator.ranks,
                                                   Machine::Get().options().nccl_channels);
  std::map<std::pair<bool, int>, int64_t> passes;
  for (size_t i = 0; i < group.transfers.size(); ++i) {
    Transfer& transfer = group.transfers[i];
    transfer.place = places[i];
    transfer.pass = ++passes[{transfer.is_send, transfer.peer}];
    transfer.number = ++CountOf(communicator, transfer).started;
  }
}

// Returns whether no group of the GPU is before this one.
bool IsFirstOfItsGpu(const Group& group) {
  bool is_first = true;
  ForEach([&](const ncclComm& other) {
    if (other.state == ncclComm::State::kGone || other.gpu != group.communicator->gpu) return;
    is_first &= other.groups.empty() || other.groups.front()->launch >= group.launch;
  });
  return is_first;
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
  if (!group.started && IsFirstOfItsGpu(group) && group.arrived == group.streams) {
    Start(group);
  }
  if (!group.started) return false;
  for (Transfer& transfer : group.transfers) Advance(group, transfer);
  return std::all_of(group.transfers.begin(), group.transfers.end(),
                     [](const Transfer& transfer) { return transfer.done; });
}

void End(Group& group) {
  ncclComm& communicator = *group.communicator;
  if (group.ended || communicator.state == ncclComm::State::kGone) return;
  group.ended = true;
  std::set<std::shared_ptr<Sum>> sums;
  for (const Transfer& transfer : group.transfers) sums.insert(transfer.sum);
  for (const std::shared_ptr<Sum>& sum : sums) {
    if (sum != nullptr) AddUp(communicator, *sum);
  }
  communicator.groups.pop_front();
}

void Fail(ncclComm& communicator, ncclResult_t error) {
  if (communicator.error != ncclSuccess) return;
  communicator.clique->Leave();
  communicator.error = error;
}

}  // namespace stagecoach::testing::cuda
