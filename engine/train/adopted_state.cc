#include "engine/train/adopted_state.h"

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
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/checkpoint/manifest.h"
#include "engine/run/executor.h"

namespace stagecoach::engine {
namespace {

// What a process says that has nothing.
constexpr absl::string_view kNew = "-";

absl::Status NotAlike() { return absl::AbortedError("the processes do not go on alike"); }

// All but the pieces: "17 2176 {...}", or "17 2176 -" without a position.
std::string ToText(const KeptState& state) {
  return absl::StrCat(state.steps, " ", state.samples, " ",
                      state.position.has_value() ? ToText(*state.position) : std::string(kNew));
}

absl::StatusOr<KeptState> ParseKept(absl::string_view text) {
  const std::vector<absl::string_view> words = absl::StrSplit(text, absl::MaxSplits(' ', 2));
  KeptState state;
  if (words.size() != 3 || !absl::SimpleAtoi(words[0], &state.steps) ||
      !absl::SimpleAtoi(words[1], &state.samples)) {
    return NotAlike();
  }
  if (words[2] != kNew) {
    ASSIGN_OR_RETURN(state.position, ParseDataPosition(words[2]));
  }
  return state;
}

// Which replica of a rank gives its state to those that are new: the first that has it.
absl::StatusOr<int> GiverOf(const Mesh& mesh, schedule::Rank rank,
                            const std::vector<std::string>& kept) {
  for (int replica = 0; replica < mesh.num_replicas(); ++replica) {
    if (kept[static_cast<size_t>(mesh.device_of(rank, replica))] != kNew) return replica;
  }
  return absl::AbortedError(absl::StrCat("no replica of rank ", rank.value(), " is left"));
}

absl::Status TakeOwn(const Executor& executor, const KeptState& own) {
  const std::vector<TrainedPiece> pieces = executor.TrainedPieces();
  if (pieces.size() != own.pieces.size()) return NotAlike();
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (pieces[i].tensor.elements() != std::ssize(own.pieces[i])) return NotAlike();
    std::memcpy(pieces[i].tensor.data, own.pieces[i].data(),
                static_cast<size_t>(pieces[i].tensor.bytes()));
  }
  return absl::OkStatus();
}

// A job of the stream that the transport is used by. The giver sends to all that are new.
absl::Status HandOver(Transport& replicas, const Executor& executor, int giver,
                      const std::vector<int>& takers, absl::Duration deadline) {
  replicas.Restart();
  const int own = replicas.rank().value();
  std::vector<Transport::Ticket> tickets;
  const std::vector<TrainedPiece> pieces = executor.TrainedPieces();
  for (size_t i = 0; i < pieces.size(); ++i) {
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
  return absl::OkStatus();
}

// What all that are not new have kept, without the pieces.
absl::StatusOr<KeptState> CommonOf(const std::vector<std::string>& kept) {
  std::optional<KeptState> first;
  for (const std::string& text : kept) {
    if (text == kNew) continue;
    ASSIGN_OR_RETURN(const KeptState theirs, ParseKept(text));
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

absl::StatusOr<KeptState> AdoptState(RankGroup& group, Executors executors, const KeptState* own,
                                     absl::Duration deadline) {
  ASSIGN_OR_RETURN(const std::vector<std::string> kept,
                   group.Gather(own == nullptr ? std::string(kNew) : ToText(*own)));
  ASSIGN_OR_RETURN(KeptState common, CommonOf(kept));
  const Mesh& mesh = group.mesh();
  std::vector<int> givers;  // by rank
  for (schedule::Rank rank(0); rank.value() < mesh.num_ranks(); ++rank) {
    ASSIGN_OR_RETURN(givers.emplace_back(), GiverOf(mesh, rank, kept));
  }
  RETURN_IF_ERROR(group.Together([&](int device) -> absl::Status {
    const Executor& executor = *executors[static_cast<size_t>(device)];
    if (own != nullptr) RETURN_IF_ERROR(TakeOwn(executor, *own));
    const schedule::Rank rank = mesh.rank_of(device);
    std::vector<int> takers;
    for (int replica = 0; replica < mesh.num_replicas(); ++replica) {
      if (kept[static_cast<size_t>(mesh.device_of(rank, replica))] == kNew) {
        takers.push_back(replica);
      }
    }
    absl::Status exchanged;
    if (!takers.empty()) {
      group.beside(device)->stream().Run([&] {
        exchanged = HandOver(*group.replicas(device), executor,
                             givers[static_cast<size_t>(rank.value())], takers, deadline);
      });
    }
    RETURN_IF_ERROR(exchanged);
    for (const std::unique_ptr<Stage>& stage : executor.stages()) {
      RETURN_IF_ERROR(stage->RoundParameters());
    }
    return absl::OkStatus();
  }));
  return common;
}

absl::StatusOr<std::vector<std::vector<float>>> CopyPieces(RankGroup& group, Executors executors) {
  const int device = group.local_devices().front();
  STAGECOACH_CHECK(group.device(device).memory_is_host(), "the pieces are in host memory");
  std::vector<std::vector<float>> pieces;
  for (const TrainedPiece& piece : executors[static_cast<size_t>(device)]->TrainedPieces()) {
    const float* const values = piece.tensor.f32();
    pieces.emplace_back(values, values + piece.tensor.elements());
  }
  return pieces;
}

}  // namespace stagecoach::engine
