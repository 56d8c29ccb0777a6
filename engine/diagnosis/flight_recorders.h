#ifndef STAGECOACH_ENGINE_DIAGNOSIS_FLIGHT_RECORDERS_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_FLIGHT_RECORDERS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/diagnosis/first_stalled_rank.h"
#include "engine/diagnosis/flight_recorder.h"

namespace stagecoach::engine {

struct RecorderOptions {
  std::string folder;  // created if missing; "": recorders are in memory
  std::string launch;  // RecorderOwner::launch
  // Called with the reason if a recorder is in memory alone, such as a lack of room for its file.
  std::function<void(const absl::Status& why)> on_no_file = {};
};

// The recorders of the devices that are in this process.
class FlightRecorders {
 public:
  static absl::StatusOr<std::unique_ptr<FlightRecorders>> Create(
      const RecorderOptions& options, const std::vector<RecorderOwner>& owners);

  // Pre-condition: the device is one of the owners.
  FlightRecorder& of(int device) { return *recorders_.at(device); }
  // Returns which of these devices has held up the others: FirstStalledRank::sentence. Thread-safe,
  // also while they are at work.
  std::string Explain() const;

 private:
  std::map<int, std::unique_ptr<FlightRecorder>> recorders_;
};

// The findings from a folder of recorders.
struct Diagnosis {
  FirstStalledRank stop;
  std::string trace;  // ToMergedTrace
};
// Diagnoses the run of a folder. Errors: those of ReadRecorders.
absl::StatusOr<Diagnosis> Diagnose(const std::string& folder);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_FLIGHT_RECORDERS_H_
