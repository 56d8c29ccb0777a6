#ifndef STAGECOACH_ENGINE_DIAGNOSIS_RINGS_H_
#define STAGECOACH_ENGINE_DIAGNOSIS_RINGS_H_

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/diagnosis/action_ring.h"
#include "engine/diagnosis/first_stop.h"

namespace stagecoach::engine {

struct RingOptions {
  std::string folder;  // is made if it is not there; "": rings are in memory
  std::string launch;  // RingOwner::launch
  // Called with why a ring is in memory alone, since there is no room for its file, say.
  std::function<void(const absl::Status& why)> on_no_file = {};
};

// The rings of the devices that are in this process.
class Rings {
 public:
  static absl::StatusOr<std::unique_ptr<Rings>> Create(const RingOptions& options,
                                                       const std::vector<RingOwner>& owners);

  // Pre-condition: the device is one of the owners.
  ActionRing& of(int device) { return *rings_.at(device); }
  // Which of these devices has held up the others: FirstStop::sentence. Thread-safe, also while
  // they are at work.
  std::string Explain() const;

 private:
  std::map<int, std::unique_ptr<ActionRing>> rings_;
};

// What a folder of rings tells.
struct Diagnosis {
  FirstStop stop;
  std::string trace;  // ToMergedTrace
};
// Errors: those of ReadRings.
absl::StatusOr<Diagnosis> Diagnose(const std::string& folder);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DIAGNOSIS_RINGS_H_
