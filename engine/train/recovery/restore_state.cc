#include "engine/train/recovery/restore_state.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/checkpoint/manifest.h"
#include "engine/runtime/executor.h"
#include "engine/runtime/stage/fill_tensors.h"
#include "kernels/device.h"
#include "kernels/staging.h"

namespace stagecoach::engine {
namespace {

// The text of a process that has nothing.
constexpr absl::string_view kNew = "-";

absl::Status NotAlike() { return absl::AbortedError("the processes disagree on how to recover"); }

// Returns everything except the pieces: "17 2176 {...}", or "17 2176 -" without a position.
std::string ToText(const StateSnapshot& state) {
  return absl::StrCat(state.steps, " ", state.samples, " ",
                      state.position.has_value() ? ToText(*state.position) : std::string(kNew));
}

absl::StatusOr<StateSnapshot> ParseSnapshot(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  StateSnapshot state;
  if (words.size() != 3 || !absl::SimpleAtoi(words[0], &state.steps) ||
      !absl::SimpleAtoi(words[1], &state.samples)) {
    return NotAlike();
  }
  if (words[2] != kNew) {
    ASSIGN_OR_RETURN(state.position, ParseDataPosition(words[2]));
  }
  return state;
}

// Returns the replica of a rank that sends its state to new ones: the first that has it.
absl::StatusOr<int> GiverOf(const Mesh& mesh, schedule::Rank rank,
                            const std::vector<std::string>& snapshots) {
  for (int replica = 0; replica < mesh.num_replicas(); ++replica) {
    if (snapshots[static_cast<size_t>(mesh.device_of(rank, replica))] != kNew) return replica;
  }
  return absl::AbortedError(absl::StrCat("no replica of rank ", rank.value(), " is left"));
}

// Uploads what this process has kept to its device. A job of the device's stream.
absl::Status TakeOwn(kernels::Device& device, const Executor& executor, const StateSnapshot& own) {
  std::vector<kernels::Tensor> tensors;
  for (const TrainedPiece& piece : executor.TrainedPieces()) tensors.push_back(piece.tensor);
  const bool is_alike =
      std::equal(tensors.begin(), tensors.end(), own.pieces.begin(), own.pieces.end(),
                 [](const kernels::Tensor& tensor, const std::vector<std::byte>& bytes) {
                   return tensor.bytes() == std::ssize(bytes);
                 });
  if (!is_alike) return NotAlike();
  return FillTensors(device, tensors, [&](int i, const kernels::Tensor& values) {
    std::memcpy(values.data, own.pieces[static_cast<size_t>(i)].data(),
                static_cast<size_t>(values.bytes()));
    return absl::OkStatus();
  });
}

// Sends the giver's state to all that are new. A job of the stream that uses the transport.
absl::Status HandOver(kernels::Stream& stream, Transport& replicas, const Executor& executor,
                      int giver, const std::vector<int>& takers, absl::Duration deadline) {
  constexpr size_t kPiecesAtOnce = 64;  // an accelerator exchanges all of these as one group
  const int own = replicas.rank().value();
  const std::vector<TrainedPiece> pieces = executor.TrainedPieces();
  for (size_t begin = 0; begin < pieces.size(); begin += kPiecesAtOnce) {
    replicas.Restart();
    std::vector<Transport::Ticket> tickets;
    for (size_t i = begin; i < std::min(begin + kPiecesAtOnce, pieces.size()); ++i) {
      const Message message = {Message::Kind::kState, StageId(0),
                               MicroBatch(static_cast<int32_t>(i))};
      for (const int taker : takers) {
        if (own == giver) {
          ASSIGN_OR_RETURN(tickets.emplace_back(),
                           replicas.PostSend(Rank(taker), message, pieces[i].tensor));
        } else if (own == taker) {
          ASSIGN_OR_RETURN(tickets.emplace_back(),
                           replicas.PostReceive(Rank(giver), message, pieces[i].tensor));
        }
      }
    }
    RETURN_IF_ERROR(replicas.Flush());
    for (const Transport::Ticket& ticket : tickets) {
      RETURN_IF_ERROR(replicas.Wait(ticket, base::Deadline::After(deadline)));
    }
    RETURN_IF_ERROR(
        stream.Finish(base::Deadline::After(deadline), [&] { return replicas.Poll(); }));
  }
  return absl::OkStatus();
}

// Returns what all that are not new have kept, without the pieces.
absl::StatusOr<StateSnapshot> CommonOf(const std::vector<std::string>& snapshots) {
  std::optional<StateSnapshot> first;
  for (const std::string& text : snapshots) {
    if (text == kNew) continue;
    ASSIGN_OR_RETURN(const StateSnapshot theirs, ParseSnapshot(text));
    if (!first.has_value()) first = theirs;
    if (!first->position.has_value()) first->position = theirs.position;
    const bool is_alike = theirs.steps == first->steps && theirs.samples == first->samples &&
                          (!theirs.position.has_value() ||
                           theirs.position->losses_hash == first->position->losses_hash);
    if (!is_alike) return NotAlike();
  }
  if (!first.has_value()) return absl::AbortedError("no process is left of the run");
  if (!first->position.has_value()) return NotAlike();
  return *std::move(first);
}

}  // namespace

absl::StatusOr<StateSnapshot> RestoreState(RankGroup& group, Executors executors,
                                           const StateSnapshot* own, absl::Duration deadline) {
  ASSIGN_OR_RETURN(const std::vector<std::string> snapshots,
                   group.Gather(own == nullptr ? std::string(kNew) : ToText(*own)));
  ASSIGN_OR_RETURN(StateSnapshot common, CommonOf(snapshots));
  const Mesh& mesh = group.mesh();
  std::vector<int> givers;  // by rank
  for (schedule::Rank rank(0); rank.value() < mesh.num_ranks(); ++rank) {
    ASSIGN_OR_RETURN(givers.emplace_back(), GiverOf(mesh, rank, snapshots));
  }
  RETURN_IF_ERROR(group.RunCollective([&](int device) -> absl::Status {
    const Executor& executor = *executors[static_cast<size_t>(device)];
    kernels::Device& on = group.device(device);
    if (own != nullptr) RETURN_IF_ERROR(TakeOwn(on, executor, *own));
    const schedule::Rank rank = mesh.rank_of(device);
    std::vector<int> takers;
    for (int replica = 0; replica < mesh.num_replicas(); ++replica) {
      if (snapshots[static_cast<size_t>(mesh.device_of(rank, replica))] == kNew) {
        takers.push_back(replica);
      }
    }
    absl::Status exchanged;
    if (!takers.empty()) {
      kernels::Stream& beside = group.beside(device)->stream();
      beside.Run([&] {
        exchanged = HandOver(beside, *group.replicas(device), executor,
                             givers[static_cast<size_t>(rank.value())], takers, deadline);
      });
    }
    RETURN_IF_ERROR(exchanged);
    for (const std::unique_ptr<Stage>& stage : executor.stages()) {
      RETURN_IF_ERROR(stage->RoundParameters());
    }
    return on.stream().Finish();
  }));
  return common;
}

absl::StatusOr<std::vector<std::vector<std::byte>>> CopyPieces(RankGroup& group,
                                                               Executors executors,
                                                               absl::Duration deadline) {
  std::vector<std::vector<std::byte>> pieces;
  RETURN_IF_ERROR(group.ForEachLocalDevice([&](int device) -> absl::Status {
    kernels::Device& from = group.device(device);
    std::vector<kernels::DownloadPiece> downloads;
    for (const TrainedPiece& piece : executors[static_cast<size_t>(device)]->TrainedPieces()) {
      std::vector<std::byte>& bytes =
          pieces.emplace_back(static_cast<size_t>(piece.tensor.bytes()));
      downloads.push_back(
          {.to = bytes.data(), .from = piece.tensor.data, .bytes = piece.tensor.bytes()});
    }
    RETURN_IF_ERROR(
        from.stream().Finish(base::Deadline::After(deadline), [] { return absl::OkStatus(); }));
    return kernels::Download(from, downloads);
  }));
  return pieces;
}

}  // namespace stagecoach::engine
