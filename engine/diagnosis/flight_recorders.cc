#include "engine/diagnosis/flight_recorders.h"

#include <utility>

#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/diagnosis/first_stalled_rank.h"
#include "engine/diagnosis/merged_trace.h"
#include "engine/diagnosis/messages.h"

namespace stagecoach::engine {

absl::StatusOr<std::unique_ptr<FlightRecorders>> FlightRecorders::Create(
    const RecorderOptions& options, const std::vector<RecorderOwner>& owners) {
  if (!options.folder.empty()) RETURN_IF_ERROR(base::MakeFolders(options.folder));
  auto recorders = std::make_unique<FlightRecorders>();
  for (RecorderOwner owner : owners) {
    const int device = owner.device;
    owner.launch = options.launch;
    absl::StatusOr<std::unique_ptr<FlightRecorder>> recorder = FlightRecorder::Create(
        owner, options.folder.empty() ? "" : RingPath(options.folder, device));
    if (!recorder.ok() && !options.folder.empty()) {
      if (options.on_no_file) options.on_no_file(recorder.status());
      recorder = FlightRecorder::Create(std::move(owner), "");
    }
    ASSIGN_OR_RETURN(recorders->recorders_[device], std::move(recorder));
  }
  return recorders;
}

std::string FlightRecorders::Explain() const {
  std::vector<RankRecord> records;
  for (const auto& [device, recorder] : recorders_) records.push_back(recorder->Read());
  return FindFirstStalledRank(records).sentence;
}

absl::StatusOr<Diagnosis> Diagnose(const std::string& folder) {
  ASSIGN_OR_RETURN(std::vector<RankRecord> records, ReadRecorders(folder));
  AlignClocks(records);
  return Diagnosis{.stop = FindFirstStalledRank(records), .trace = ToMergedTrace(records)};
}

}  // namespace stagecoach::engine
