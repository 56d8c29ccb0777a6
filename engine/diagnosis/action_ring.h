#ifndef STAGECOACH_ENGINE_DIAGNOSIS_ACTION_RING_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_ACTION_RING_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/action.h"

namespace stagecoach::engine {

// What must have happened elsewhere before an action can start.
enum class Awaited : uint8_t {
  kNothing,
  kMessage,   // what it reads has come from `peer`
  kTaken,     // `peer` has taken the message before this one on the same lane
  kOwnTaken,  // `peer` has taken this message, which was posted before: at the end of a list
  kReplicas,  // the other replicas of its rank have come to it
  kAll,       // all others have come to it: a collective
};
inline constexpr int kNumAwaited = 6;

// An action of a rank's list, and what it waits for.
struct RingAction {
  schedule::Action action;
  Awaited awaited = Awaited::kNothing;
  schedule::Rank peer;  // in the schedule, of the same replica

  friend bool operator==(const RingAction&, const RingAction&) = default;
};

// Whose ring it is.
struct RingOwner {
  int device = 0;  // its number in the mesh: the rank of its process
  int devices = 1;
  int replica = 0;
  int replicas = 1;
  std::string name;    // "rank 2 (stage 2, replica 0)"
  std::string launch;  // tells apart the starts of a run; "" if there is no such name
  std::string clock;   // owners with the same name have the same clock; Create fills it in

  friend bool operator==(const RingOwner&, const RingOwner&) = default;
};

// Times are CLOCK_MONOTONIC of the owner's machine; 0: it has not come to that.
struct RecordedAction {
  RingAction what;
  int64_t run = 0;   // of either schedule, since the owner began: the same in all ranks
  int64_t step = 0;  // of training; in an evaluation, the last one before it
  bool trains = true;
  int64_t begun_ns = 0;    // the rank has come to it
  int64_t started_ns = 0;  // what it waits for has happened
  int64_t ended_ns = 0;

  bool is_open() const { return ended_ns == 0; }
  int64_t last_ns() const;  // the latest of the three

  friend bool operator==(const RecordedAction&, const RecordedAction&) = default;
};

// What a ring had when it was read.
struct RankRecord {
  RingOwner owner;
  // When the owner failed or ended; 0: it is at work, hangs, or was killed.
  int64_t closed_ns = 0;
  std::vector<RecordedAction> actions;  // the oldest first; none if it has not begun
};

struct RingMemory;  // as it is in a file

// The last kEntries actions of one rank, with their times. One thread writes, which must not wait:
// an entry takes a look at the clock and ten stores. On an accelerator, times are those at which
// the host issues the actions, which is up to Instruction::kMostAhead computations ahead.
//
// In a file it can be read after its process was killed, and by other processes meanwhile.
class ActionRing {
 public:
  static constexpr int kEntries = 4096;
  static constexpr int64_t kBytes = 4096 + kEntries * 64;

  // `path`: of a file, which replaces the one that is there; "": memory of this process alone.
  // Errors name the path.
  static absl::StatusOr<std::unique_ptr<ActionRing>> Create(RingOwner owner,
                                                            const std::string& path);
  // Closes it. The file stays.
  ~ActionRing();
  ActionRing(const ActionRing&) = delete;
  ActionRing& operator=(const ActionRing&) = delete;

  // The actions of one run of a schedule are begun one after the other; each ends as the next one
  // is begun, or as the run ends.
  void BeginRun(int64_t step, bool trains);
  void Begin(const RingAction& action);
  void Start();  // what the present action waits for has happened
  void EndRun();
  // Where the device is that these actions were issued to, if it is behind: the place in the run of
  // the first action that it has not done.
  void DeviceIsAt(int position);
  // The owner has failed or ends. Only the first call counts.
  void Close();

  // Thread-safe, at any time: an entry that is being written is left out.
  RankRecord Read() const;

 private:
  ActionRing(RingOwner owner, RingMemory* memory) : owner_(std::move(owner)), memory_(memory) {}
  uint64_t* Last();  // entry

  const RingOwner owner_;
  RingMemory* const memory_;  // a mapping
  uint64_t next_ = 0;         // the number of the next entry, from 0 on
  uint64_t first_ = 0;        // of the run
  int64_t run_ = 0, step_ = 0;
  bool trains_ = true;
};

// The file of a device's ring in a folder of rings.
std::string RingPath(const std::string& folder, int device);

// The contents of such a file. DataLoss: it is damaged, or of another version. Safe on hostile
// input.
absl::StatusOr<RankRecord> ParseRing(absl::string_view bytes);

// Of all devices of a run, by their numbers; without actions where a device has no ring. NotFound:
// the folder has no rings. FailedPrecondition: they are of different runs. Errors of ParseRing name
// the file.
absl::StatusOr<std::vector<RankRecord>> ReadRings(const std::string& folder);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_ACTION_RING_H_
