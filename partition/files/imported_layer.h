#ifndef STAGECOACH_PARTITION_FILES_IMPORTED_LAYER_H_
#define STAGECOACH_PARTITION_FILES_IMPORTED_LAYER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/layer_cost.h"

namespace stagecoach::partition {

// What profiles made elsewhere say of a layer, at one micro-batch size.
struct ImportedLayer {
  std::string name;
  double forward_ns = 0;
  double backward_ns = 0;
  int64_t output_bytes = 0;
  int64_t parameter_bytes = 0;
  int64_t optimizer_bytes = 0;
};

// Parameters of 4 bytes. The backward time is half B, half W for a layer with parameters, else all
// B. The layer keeps its input until the backward pass is done with it (until W if it has
// parameters, else until B), its output until B, and nothing else. Its input_bytes are left at 0.
LayerCost FromImported(const ImportedLayer& imported);

// Numbers of a text file. InvalidArgument, quoting the text and naming the range, for anything but
// one finite number from 0 to schedule::kMaxTimeNs (given in ms, returned in ns) or to
// schedule::kMaxSizeBytes (rounded to whole bytes).
absl::StatusOr<double> ParseMilliseconds(absl::string_view text);
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_FILES_IMPORTED_LAYER_H_
