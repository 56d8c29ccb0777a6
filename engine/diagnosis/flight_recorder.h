#ifndef STAGECOACH_ENGINE_DIAGNOSIS_FLIGHT_RECORDER_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_FLIGHT_RECORDER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "schedule/ir/action.h"

namespace stagecoach::engine {

// An event elsewhere that must have happened before an action can start.
enum class Awaited : uint8_t {
  kNothing,
  kMessage,   // its input has arrived from `peer`
  kTaken,     // `peer` has taken the message before this one on the same lane
  kOwnTaken,  // `peer` has taken this message, which was posted before: at the end of a list
  kReplicas,  // the other replicas of its rank have arrived at it
  kAll,       // all others have arrived at it: a collective
};
inline constexpr int kNumAwaited = 6;

// An action of a rank's list, and what it waits for.
struct FlightAction {
  schedule::Action action;
  Awaited awaited = Awaited::kNothing;
  schedule::Rank peer;  // in the schedule, of the same replica

  friend bool operator==(const FlightAction&, const FlightAction&) = default;
};

// Identifies the owner of a recorder.
struct RecorderOwner {
  int device = 0;  // number in the mesh: the rank of its process
  int devices = 1;
  int replica = 0;
  int replicas = 1;
  std::string name;    // "rank 2 (stage 2, replica 0)"
  std::string launch;  // tells apart the starts of a run; "" without such a name
  std::string clock;   // owners with the same name have the same clock; Create fills it in

  friend bool operator==(const RecorderOwner&, const RecorderOwner&) = default;
};

// An action with its times: CLOCK_MONOTONIC of the owner's machine; 0: not reached.
struct FlightEvent {
  FlightAction what;
  int64_t run = 0;   // of either schedule, since the owner began: the same on all ranks
  int64_t step = 0;  // of training; in an evaluation, the last one before it
  bool trains = true;
  int64_t begun_ns = 0;    // the rank has reached it
  int64_t started_ns = 0;  // what it waits for has happened
  int64_t ended_ns = 0;

  bool is_open() const { return ended_ns == 0; }
  int64_t last_ns() const;  // the latest of the three

  friend bool operator==(const FlightEvent&, const FlightEvent&) = default;
};

// The contents of a recorder when it was read.
struct RankRecord {
  RecorderOwner owner;
  // The time when the owner failed or ended; 0: it is at work, hangs, or was killed.
  int64_t closed_ns = 0;
  std::vector<FlightEvent> actions;  // oldest first; none if it has not begun
};

struct RecorderMemory;  // layout in a file

// The last kEntries actions of one rank, with their times. One thread writes, which must not wait:
// an entry takes one reading of the clock and ten stores. On an accelerator, times are those at
// which the host issues the actions, up to Instruction::kMostAhead computations ahead.
//
// A recorder in a file can be read after its process was killed, and by other processes meanwhile.
class FlightRecorder {
 public:
  static constexpr int kEntries = 4096;
  static constexpr int64_t kBytes = 4096 + kEntries * 64;

  // `path`: that of a file, which replaces an existing one; "": memory of this process alone.
  // Errors name the path.
  static absl::StatusOr<std::unique_ptr<FlightRecorder>> Create(RecorderOwner owner,
                                                                const std::string& path);
  // Closes it. The file stays.
  ~FlightRecorder();
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;

  // Record the actions of one run of a schedule one after the other; each ends when the next one
  // begins, or when the run ends.
  void BeginRun(int64_t step, bool trains);
  void Begin(const FlightAction& action);
  void Start();  // what the present action waits for has happened
  void EndRun();
  // Records where the device is that these actions were issued to, if it is behind: the place in
  // the run of the first action that it has not done.
  void DeviceIsAt(int position);
  // Called when the owner has failed or ends. Only the first call counts.
  void Close();

  // Returns the record. Thread-safe, at any time: an entry that is being written is left out.
  RankRecord Read() const;

 private:
  FlightRecorder(RecorderOwner owner, RecorderMemory* memory)
      : owner_(std::move(owner)), memory_(memory) {}
  uint64_t* Last();  // entry

  const RecorderOwner owner_;
  RecorderMemory* const memory_;  // a mapping
  uint64_t next_ = 0;             // the number of the next entry, from 0 on
  uint64_t first_ = 0;            // of the run
  int64_t run_ = 0, step_ = 0;
  bool trains_ = true;
};

// Returns the file of a device's recorder in a folder of recorders.
std::string RingPath(const std::string& folder, int device);

// Parses the contents of such a file. DataLoss: it is damaged, or of another version. Safe on
// hostile input.
absl::StatusOr<RankRecord> ParseRing(absl::string_view bytes);

// Reads the recorders of all devices of a run, by their numbers; without actions if a device has no
// recorder. NotFound: the folder has no recorders. FailedPrecondition: they are of different runs.
// Errors of ParseRing name the file.
absl::StatusOr<std::vector<RankRecord>> ReadRecorders(const std::string& folder);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_FLIGHT_RECORDER_H_
