#ifndef STAGECOACH_PARTITION_IO_IMPORTED_LAYER_H_
#define STAGECOACH_PARTITION_IO_IMPORTED_LAYER_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "partition/cost/layer_cost.h"

namespace stagecoach::partition {

// A layer in a profile made elsewhere, at one micro-batch size.
struct ImportedLayer {
  std::string name;
  double forward_ns = 0;
  double backward_ns = 0;
  int64_t output_bytes = 0;
  int64_t parameter_bytes = 0;
  int64_t optimizer_bytes = 0;
};

// Converts a layer with parameters of 4 bytes. The backward time is half B, half W for a layer with
// parameters, else all B. The layer keeps its input until the backward pass is done with it (until
// W if it has parameters, else until B), its output until B, and nothing else. Its input_bytes are
// left at 0.
LayerCost FromImported(const ImportedLayer& imported);

// Parse numbers of a text file. InvalidArgument, quoting the text and naming the range, for
// anything except one finite number from 0 to schedule::kMaxTimeNs (in ms, returned in ns) or to
// schedule::kMaxSizeBytes (rounded to whole bytes).
absl::StatusOr<double> ParseMilliseconds(absl::string_view text);
absl::StatusOr<int64_t> ParseByteCount(absl::string_view text);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_IMPORTED_LAYER_H_
