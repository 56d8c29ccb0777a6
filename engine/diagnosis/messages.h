#ifndef STAGECOACH_ENGINE_DIAGNOSIS_MESSAGES_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_MESSAGES_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "engine/diagnosis/flight_recorder.h"
#include "schedule/ir/action.h"

namespace stagecoach::engine {

// Returns the send that fills what a computation reads. Pre-condition: it awaits a message.
schedule::Action SendFor(const schedule::Action& compute);

// A send and the computation that has read its message, as indices into the records.
struct RecordedMessage {
  size_t from, send;  // record, and action in it
  size_t to, read;
};
// Returns all messages whose ends are both recorded, and have begun.
std::vector<RecordedMessage> MessagesOf(absl::Span<const RankRecord> records);

// Puts the times of all ranks on one clock: what reads a message starts no earlier than the message
// was sent. Owners of one clock agree already. Shifts that satisfy all of these constraints are
// shortest paths (Bellman 1958). If the clocks agree already, or if no shifts satisfy all
// constraints, since clocks drift, times do not change.
void AlignClocks(std::vector<RankRecord>& records);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_MESSAGES_H_
