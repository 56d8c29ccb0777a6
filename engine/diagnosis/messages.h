#ifndef STAGECOACH_ENGINE_DIAGNOSIS_MESSAGES_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_MESSAGES_H_

#include <cstddef>
#include <vector>

#include "absl/types/span.h"
#include "engine/diagnosis/action_ring.h"
#include "schedule/action.h"

namespace stagecoach::engine {

// The send that fills what a computation reads. Pre-condition: it awaits a message.
schedule::Action SendFor(const schedule::Action& compute);

// A send and the computation that has read its message, as places in the records.
struct RecordedMessage {
  size_t from, send;  // index: record, its action
  size_t to, read;
};
// All of which both ends are recorded, and have begun.
std::vector<RecordedMessage> MessagesOf(absl::Span<const RankRecord> records);

// Puts the times of all ranks on one clock: what reads a message starts no earlier than the message
// was sent. Owners of one clock agree already. Shifts that satisfy all of these constraints are
// shortest paths (Bellman 1958). Where clocks agree as they are, and where no shifts satisfy all,
// since clocks drift, times stay as they are.
void AlignClocks(std::vector<RankRecord>& records);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_MESSAGES_H_
