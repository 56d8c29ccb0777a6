#include "engine/diagnosis/messages.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>

namespace stagecoach::engine {
namespace {

using schedule::Action;
using schedule::Op;
using Clocks = std::map<std::string, int64_t>;

// Larger than any difference of clocks; sums of it and of times cannot overflow.
constexpr int64_t kLeastShiftNs = -(int64_t{1} << 60);

// Returns by how much each clock must be advanced: shift(from) <= shift(to) + slack for every
// message, since it was sent before it was read. All are 0 if that satisfies the constraints, or if
// nothing does.
Clocks ShiftsOf(absl::Span<const RankRecord> records) {
  std::map<std::pair<std::string, std::string>, int64_t> slacks;  // from, to
  for (const RecordedMessage& message : MessagesOf(records)) {
    const RankRecord& from = records[message.from];
    const RankRecord& to = records[message.to];
    if (from.owner.clock == to.owner.clock) continue;
    const int64_t slack_ns =
        to.actions[message.read].started_ns - from.actions[message.send].begun_ns;
    const auto [least, is_new] = slacks.try_emplace({from.owner.clock, to.owner.clock}, slack_ns);
    least->second = std::min(least->second, slack_ns);
  }
  Clocks shifts;
  for (const RankRecord& record : records) shifts[record.owner.clock] = 0;
  for (size_t round = 0; round < shifts.size(); ++round) {
    bool is_done = true;
    for (const auto& [clocks, slack_ns] : slacks) {
      int64_t& from_ns = shifts[clocks.first];
      const int64_t most_ns = shifts[clocks.second] + slack_ns;
      if (from_ns > most_ns) is_done = false;
      from_ns = std::max(std::min(from_ns, most_ns), kLeastShiftNs);
    }
    if (is_done) return shifts;
  }
  for (auto& [clock, shift_ns] : shifts) shift_ns = 0;
  return shifts;
}

}  // namespace

Action SendFor(const Action& compute) {
  const Op receive = compute.op == Op::kForward ? Op::kReceiveActivation : Op::kReceiveGradient;
  return schedule::OtherEnd(
      {.op = receive, .stage = compute.stage, .micro_batch = compute.micro_batch});
}

std::vector<RecordedMessage> MessagesOf(absl::Span<const RankRecord> records) {
  using Key = std::tuple<int /*replica*/, int64_t /*run*/, Action>;
  std::map<Key, std::pair<size_t, size_t>> sends;
  for (size_t device = 0; device < records.size(); ++device) {
    const std::vector<FlightEvent>& actions = records[device].actions;
    for (size_t i = 0; i < actions.size(); ++i) {
      const bool is_send = IsSend(actions[i].what.action.op);
      if (!is_send || actions[i].what.awaited == Awaited::kOwnTaken) continue;
      sends.try_emplace(
          {records[device].owner.replica, actions[i].run, Alone(actions[i].what.action)},
          std::make_pair(device, i));
    }
  }
  std::vector<RecordedMessage> messages;
  for (size_t device = 0; device < records.size(); ++device) {
    const std::vector<FlightEvent>& actions = records[device].actions;
    for (size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].what.awaited != Awaited::kMessage || actions[i].started_ns == 0) continue;
      const auto sent = sends.find(
          {records[device].owner.replica, actions[i].run, SendFor(actions[i].what.action)});
      if (sent == sends.end()) continue;
      messages.push_back({sent->second.first, sent->second.second, device, i});
    }
  }
  return messages;
}

void AlignClocks(std::vector<RankRecord>& records) {
  const Clocks shifts = ShiftsOf(records);
  int64_t least_ns = 0;
  for (const auto& [clock, shift_ns] : shifts) least_ns = std::min(least_ns, shift_ns);
  for (RankRecord& record : records) {
    // 0 means that it has not happened, so no time may become 0.
    const int64_t shift_ns = shifts.at(record.owner.clock) - least_ns;
    const auto move = [&](int64_t& time_ns) { time_ns += time_ns == 0 ? 0 : shift_ns; };
    move(record.closed_ns);
    for (FlightEvent& action : record.actions) {
      for (int64_t* const time : {&action.begun_ns, &action.started_ns, &action.ended_ns}) {
        move(*time);
      }
    }
  }
}

}  // namespace stagecoach::engine
