#include "engine/diagnosis/first_stalled_rank.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/text/units.h"
#include "engine/diagnosis/messages.h"

namespace stagecoach::engine {
namespace {

using schedule::Action;
using schedule::Op;

constexpr int64_t kShortestToldNs = 1'000'000;
constexpr size_t kMostWaitersTold = 3;

int PeerDevice(const RankRecord& record, schedule::Rank peer) {
  return peer.value() * record.owner.replicas + record.owner.replica;
}

// ---- Dependencies between ranks ----

std::string NameOfMessage(const Action& send) {
  return absl::StrCat(send.op == Op::kSendActivation ? "activation" : "gradient",
                      " of micro-batch ", send.micro_batch.value());
}

// A wait of one rank for another.
struct Edge {
  size_t to;
  std::string passively;  // "rank 3 waited for" this: "its activation of micro-batch 3"
};

class Waits {
 public:
  explicit Waits(absl::Span<const RankRecord> records) : records_(records) {}

  std::vector<Edge> Of(size_t device) const {
    const RankRecord& record = records_[device];
    std::vector<Edge> edges;
    if (record.actions.empty() || !record.actions.back().is_open()) return edges;
    const FlightEvent& open = record.actions.back();
    const Action& action = open.what.action;
    const Awaited awaited = open.what.awaited;
    const bool has_started = open.started_ns != 0 && awaited != Awaited::kAll;
    if (awaited == Awaited::kNothing || has_started) return edges;
    if (awaited == Awaited::kReplicas || awaited == Awaited::kAll) {
      for (size_t other = 0; other < records_.size(); ++other) {
        const bool is_replica = other / Replicas(record) == device / Replicas(record);
        if (other == device || (awaited == Awaited::kReplicas && !is_replica)) continue;
        if (!HasCome(other, open, action, /*ended=*/false, record.closed_ns)) {
          edges.push_back({other, "it"});
        }
      }
      return edges;
    }
    const auto peer = static_cast<size_t>(PeerDevice(record, open.what.peer));
    if (peer >= records_.size()) return edges;
    if (awaited != Awaited::kMessage) {
      edges.push_back({peer, absl::StrCat("it to take the ",
                                          awaited == Awaited::kOwnTaken
                                              ? NameOfMessage(action)
                                              : "message before the " + NameOfMessage(action))});
    } else if (!HasCome(peer, open, SendFor(action), /*ended=*/true, record.closed_ns)) {
      edges.push_back({peer, absl::StrCat("its ", NameOfMessage(SendFor(action)))});
    }
    return edges;
  }
  std::optional<Edge> Find(size_t device, size_t other) const {
    for (const Edge& edge : Of(device)) {
      if (edge.to == other) return edge;
    }
    return std::nullopt;
  }
  // Returns the first of these others that a rank waits for, possibly through more ranks.
  std::optional<size_t> Reach(size_t device, absl::Span<const size_t> others) const {
    std::vector<size_t> seen = {device};
    for (size_t i = 0; i < seen.size(); ++i) {
      for (const Edge& edge : Of(seen[i])) {
        if (std::find(seen.begin(), seen.end(), edge.to) != seen.end()) continue;
        if (std::binary_search(others.begin(), others.end(), edge.to)) return edge.to;
        seen.push_back(edge.to);
      }
    }
    return std::nullopt;
  }

 private:
  static size_t Replicas(const RankRecord& record) {
    return static_cast<size_t>(record.owner.replicas);
  }

  // Returns whether a rank had begun, or ended, an action in the run of `during`, by the given time
  // (0: by now).
  bool HasCome(size_t device, const FlightEvent& during, const Action& action, bool ended,
               int64_t by_ns) const {
    const std::vector<FlightEvent>& actions = records_[device].actions;
    for (auto other = actions.rbegin(); other != actions.rend(); ++other) {
      if (other->run < during.run) return false;
      if (other->run > during.run || Alone(other->what.action) != Alone(action)) continue;
      const int64_t time_ns = ended ? other->ended_ns : other->begun_ns;
      return time_ns != 0 && (by_ns == 0 || time_ns <= by_ns);
    }
    // True if the record no longer has the run.
    return !actions.empty() && actions.back().run > during.run;
  }

  const absl::Span<const RankRecord> records_;
};

// ---- Words ----

std::string NameOfPass(const Action& action, bool names_stage) {
  const std::string what =
      absl::StrCat(" of micro-batch ", action.micro_batch.value(),
                   names_stage ? absl::StrCat(" in stage ", action.stage.value()) : "");
  switch (action.op) {
    case Op::kForward:
      return "the forward pass" + what;
    case Op::kBackwardInput:
      return "the backward pass (input)" + what;
    case Op::kBackwardWeight:
      return "the backward pass (weights)" + what;
    case Op::kBackward:
      return "the backward pass" + what;
    case Op::kSendActivation:
    case Op::kSendGradient:
      return absl::StrCat("the sending of the ", NameOfMessage(action));
    case Op::kReceiveActivation:
    case Op::kReceiveGradient:
      return absl::StrCat("the receiving of the ", NameOfMessage(OtherEnd(action)));
    case Op::kOffload:
      return "the moving to the host of the stash" + what;
    case Op::kRelease:
      return "the release of the stash" + what;
    case Op::kFetch:
      return "the fetching from the host of the stash" + what;
    case Op::kReduceGradients:
      return "the sum of the gradients of its replicas";
    case Op::kStep:
      return "the update of its parameters";
    case Op::kSumTies:
      return "the sum of the gradients of tied parameters";
    case Op::kExchangeNorms:
      return "the exchange of the gradients' norms";
    case Op::kShareResults:
      return "the exchange of the loss";
    default:
      return ToString(action);
  }
}

std::string NameOfRun(const FlightEvent& action) {
  return action.trains ? absl::StrCat("step ", action.step)
                       : absl::StrCat("an evaluation after step ", action.step);
}

// Returns the place of a rank: what follows "stopped first: ".
std::string PlaceOf(const RankRecord& record) {
  if (record.actions.empty()) return "before its first step";
  const FlightEvent& last = record.actions.back();
  if (!last.is_open()) return absl::StrCat("after ", NameOfRun(last));
  std::string place = absl::StrCat(
      "in ", NameOfPass(last.what.action, absl::StrContains(record.owner.name, "stages")), " in ",
      NameOfRun(last));
  if (last.started_ns != 0) return place;
  if (last.what.awaited == Awaited::kMessage) {
    const int peer = PeerDevice(record, last.what.peer);
    absl::StrAppend(&place, ", waiting for the ", NameOfMessage(SendFor(last.what.action)),
                    " from rank ", peer);
  }
  return place;
}

int64_t LastNs(const RankRecord& record) {
  return record.actions.empty() ? 0 : record.actions.back().last_ns();
}

// Returns ", 1.2 s before the last action of another rank".
std::string LeadOf(absl::Span<const RankRecord> records, size_t device) {
  int64_t last_ns = 0;
  for (size_t other = 0; other < records.size(); ++other) {
    if (other != device) last_ns = std::max(last_ns, LastNs(records[other]));
  }
  const int64_t lead_ns = last_ns - LastNs(records[device]);
  if (records[device].actions.empty() || lead_ns < kShortestToldNs) return "";
  return absl::StrCat(", ", base::FormatDuration(absl::Nanoseconds(lead_ns)),
                      " before the last action of another rank");
}

std::string WaitersOf(const Waits& waits, size_t ranks, size_t device) {
  std::vector<std::string> told;
  size_t count = 0;
  for (size_t other = 0; other < ranks; ++other) {
    const std::optional<Edge> edge = waits.Find(other, device);
    if (!edge.has_value() || ++count > kMostWaitersTold) continue;
    told.push_back(absl::StrCat("rank ", other, " waited for ", edge->passively));
  }
  if (count > kMostWaitersTold) {
    told.push_back(absl::StrCat(count - kMostWaitersTold, " more ranks waited for it"));
  }
  return told.empty() ? "" : absl::StrCat("; ", absl::StrJoin(told, ", "));
}

// Returns when a rank stopped.
int64_t EndNs(const RankRecord& record) {
  return record.closed_ns != 0 ? record.closed_ns : LastNs(record);
}

// Returns the ranks of which one must have been the first.
std::vector<size_t> CandidatesOf(absl::Span<const RankRecord> records) {
  std::vector<size_t> silent, all;
  for (size_t device = 0; device < records.size(); ++device) {
    all.push_back(device);
    if (records[device].closed_ns == 0) silent.push_back(device);
  }
  return silent.empty() ? all : silent;
}

FirstStalledRank DescribeCycle(absl::Span<const RankRecord> records, const Waits& waits,
                               const std::vector<size_t>& cycle) {
  FirstStalledRank stop = {.place = PlaceOf(records[cycle.front()])};
  std::vector<std::string> parts;
  for (const size_t device : cycle) {
    const size_t next =
        cycle[stop.devices.size() + 1 == cycle.size() ? 0 : stop.devices.size() + 1];
    stop.devices.push_back(static_cast<int>(device));
    const std::optional<Edge> edge = waits.Find(device, next);
    if (!edge.has_value()) continue;  // it waits through others
    parts.push_back(absl::StrCat("rank ", device, " for ", edge->passively, " (rank ", next, ")"));
  }
  stop.sentence = absl::StrCat("ranks ", absl::StrJoin(cycle, ", "), " wait for one another in ",
                               NameOfRun(records[cycle.front()].actions.back()), ": ",
                               absl::StrJoin(parts, ", "));
  return stop;
}

}  // namespace

FirstStalledRank FindFirstStalledRank(absl::Span<const RankRecord> records) {
  if (std::all_of(records.begin(), records.end(),
                  [](const RankRecord& record) { return record.actions.empty(); })) {
    return {};
  }
  const Waits waits(records);
  const std::vector<size_t> candidates = CandidatesOf(records);
  const auto next_of = [&](size_t device) { return waits.Reach(device, candidates); };
  std::optional<size_t> first;
  for (const size_t device : candidates) {
    if (next_of(device).has_value()) continue;
    if (!first.has_value() || EndNs(records[device]) < EndNs(records[*first])) first = device;
  }
  if (!first.has_value()) {
    std::vector<size_t> path = {candidates.front()};
    while (true) {
      const size_t next = *next_of(path.back());
      const auto seen = std::find(path.begin(), path.end(), next);
      if (seen != path.end()) return DescribeCycle(records, waits, {seen, path.end()});
      path.push_back(next);
    }
  }
  FirstStalledRank stop = {.devices = {static_cast<int>(*first)},
                           .place = PlaceOf(records[*first])};
  stop.sentence = absl::StrCat(records[*first].owner.name, " stopped first: ", stop.place,
                               LeadOf(records, *first), WaitersOf(waits, records.size(), *first));
  return stop;
}

}  // namespace stagecoach::engine
