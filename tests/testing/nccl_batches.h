#ifndef STAGECOACH_TESTS_TESTING_NCCL_BATCHES_H_
#define STAGECOACH_TESTS_TESTING_NCCL_BATCHES_H_

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace stagecoach::testing {

// One end of a message in a group of a rank.
struct NcclEnd {
  bool is_send = false;
  int peer = 0;
};

// The place where NCCL performs it: the batches of a channel run one after the other, and the
// members of a batch together. Channels do not wait for one another.
struct NcclPlace {
  int channel = 0;
  int batch = 0;

  friend bool operator==(const NcclPlace&, const NcclPlace&) = default;
};

// Returns the places of a group's transfers, in the order in which they were posted, for ranks on
// one node and messages that one channel takes whole, as in NCCL 2.28.9 (p2pSchedule in init.cc,
// scheduleP2pTasksToPlan and addWorkBatchToPlan in enqueue.cc, ncclP2pChannelBaseForRound in
// channel.h): round r is the send to the rank r further on and the receive from the rank r before.
// Each pass over the rounds takes, for every round, the first send and the first receive that are
// left. Rounds are dealt to channels by their number with its bits reversed; a batch has at most 8
// rounds, of one block of 8, and no round twice. `channels` is a power of two.
inline std::vector<NcclPlace> NcclPlaces(const std::vector<NcclEnd>& group, int rank, int ranks,
                                         int channels) {
  constexpr int kRoundsOfBatch = 8;
  struct Channel {
    int batch = 0;
    std::set<int> rounds;  // in it
  };
  std::map<std::pair<bool, int>, int> taken;                    // by direction and peer
  std::map<std::pair<int, int>, std::vector<size_t>> in_round;  // by pass and round
  for (size_t i = 0; i < group.size(); ++i) {
    const auto [is_send, peer] = group[i];
    const int distance = is_send ? peer - rank : rank - peer;
    in_round[{taken[{is_send, peer}]++, (distance + ranks) % ranks}].push_back(i);
  }
  std::map<int, Channel> state;
  std::vector<NcclPlace> places(group.size());
  for (const auto& [pass_and_round, ends] : in_round) {
    const int round = pass_and_round.second;
    int channel = 0;
    for (int bit = 1, from = channels >> 1; from > 0; bit <<= 1, from >>= 1) {
      if ((round & bit) != 0) channel |= from;
    }
    auto& [batch, rounds] = state[channel];
    const auto is_of_block = [round](int other) {
      return other / kRoundsOfBatch == round / kRoundsOfBatch;
    };
    if (rounds.size() == kRoundsOfBatch || rounds.contains(round) ||
        !std::all_of(rounds.begin(), rounds.end(), is_of_block)) {
      ++batch;
      rounds.clear();
    }
    rounds.insert(round);
    for (const size_t i : ends) places[i] = {channel, batch};
  }
  return places;
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_NCCL_BATCHES_H_
