#include "engine/diagnosis/rings.h"

#include <utility>

#include "base/file.h"
#include "base/status_macros.h"
#include "engine/diagnosis/first_stop.h"
#include "engine/diagnosis/merged_trace.h"
#include "engine/diagnosis/messages.h"

namespace stagecoach::engine {

absl::StatusOr<std::unique_ptr<Rings>> Rings::Create(const RingOptions& options,
                                                     const std::vector<RingOwner>& owners) {
  if (!options.folder.empty()) RETURN_IF_ERROR(base::MakeFolders(options.folder));
  auto rings = std::make_unique<Rings>();
  for (RingOwner owner : owners) {
    const int device = owner.device;
    owner.launch = options.launch;
    absl::StatusOr<std::unique_ptr<ActionRing>> ring =
        ActionRing::Create(owner, options.folder.empty() ? "" : RingPath(options.folder, device));
    if (!ring.ok() && !options.folder.empty()) {
      if (options.on_no_file) options.on_no_file(ring.status());
      ring = ActionRing::Create(std::move(owner), "");
    }
    ASSIGN_OR_RETURN(rings->rings_[device], std::move(ring));
  }
  return rings;
}

std::string Rings::Explain() const {
  std::vector<RankRecord> records;
  for (const auto& [device, ring] : rings_) records.push_back(ring->Read());
  return FindFirstStop(records).sentence;
}

absl::StatusOr<Diagnosis> Diagnose(const std::string& folder) {
  ASSIGN_OR_RETURN(std::vector<RankRecord> records, ReadRings(folder));
  AlignClocks(records);
  return Diagnosis{.stop = FindFirstStop(records), .trace = ToMergedTrace(records)};
}

}  // namespace stagecoach::engine
