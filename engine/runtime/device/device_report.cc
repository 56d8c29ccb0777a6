#include "engine/runtime/device/device_report.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/status_macros.h"
#include "base/text/json.h"

namespace stagecoach::engine {

std::string MeasurementsToText(const DeviceReport& report) {
  const nlohmann::json text = {report.device,
                               report.measured_peak_bytes,
                               report.accelerator.allocated_bytes,
                               report.accelerator.context_bytes,
                               report.accelerator.library_bytes,
                               report.peak_stashed,
                               report.busy,
                               report.measured_stash_bytes,
                               report.graphs,
                               report.graph_issues,
                               report.plain_issues,
                               report.why_plain,
                               report.measured_sent.to_ranks,
                               report.measured_sent.to_replicas,
                               report.measured_sent.to_parts,
                               report.measured_host_bytes};
  return text.dump();
}

absl::Status ReadMeasurements(const std::string& text, DeviceReport& report) {
  constexpr size_t kFields = 16;
  ASSIGN_OR_RETURN(const nlohmann::json parsed, base::ParseJson(text));
  ASSIGN_OR_RETURN(const base::ArrayReader fields, base::ArrayReader::Create(parsed));
  if (fields.size() != kFields) {
    return absl::InvalidArgumentError("another process's report of its device cannot be read");
  }
  ASSIGN_OR_RETURN(report.device, fields.String(0));
  ASSIGN_OR_RETURN(report.measured_peak_bytes, fields.Int64(1));
  ASSIGN_OR_RETURN(report.accelerator.allocated_bytes, fields.Int64(2));
  ASSIGN_OR_RETURN(report.accelerator.context_bytes, fields.Int64(3));
  ASSIGN_OR_RETURN(report.accelerator.library_bytes, fields.Int64(4));
  ASSIGN_OR_RETURN(const int64_t peak_stashed,
                   fields.Int64(5, {.min = 0, .max = std::numeric_limits<int>::max()}));
  report.peak_stashed = static_cast<int>(peak_stashed);
  ASSIGN_OR_RETURN(report.busy, fields.Double(6));
  ASSIGN_OR_RETURN(report.measured_stash_bytes, fields.Int64(7));
  ASSIGN_OR_RETURN(report.graphs, fields.Int64(8));
  ASSIGN_OR_RETURN(report.graph_issues, fields.Int64(9));
  ASSIGN_OR_RETURN(report.plain_issues, fields.Int64(10));
  ASSIGN_OR_RETURN(report.why_plain, fields.String(11));
  ASSIGN_OR_RETURN(report.measured_sent.to_ranks, fields.Int64(12));
  ASSIGN_OR_RETURN(report.measured_sent.to_replicas, fields.Int64(13));
  ASSIGN_OR_RETURN(report.measured_sent.to_parts, fields.Int64(14));
  ASSIGN_OR_RETURN(report.measured_host_bytes, fields.Int64(15));
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
