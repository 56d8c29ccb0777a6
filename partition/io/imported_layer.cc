#include "partition/io/imported_layer.h"

#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "schedule/memory/memory_plan.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::partition {
namespace {

absl::StatusOr<double> ParseNumber(absl::string_view text, double max, absl::string_view what) {
  double number = 0;
  // NaN is also refused, since comparisons with it are false.
  if (absl::SimpleAtod(text, &number) && number >= 0 && number <= max) return number;
  constexpr size_t kShown = 40;
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", absl::CHexEscape(text.substr(0, kShown)), text.size() > kShown ? "...\"" : "\"", ": ",
      what, " must be a number from 0 to ", static_cast<int64_t>(max)));
}

}  // namespace

LayerCost FromImported(const ImportedLayer& imported) {
  using schedule::LastUse;
  LayerCost layer;
  layer.name = imported.name;
  layer.parameters = imported.parameter_bytes / 4;
  layer.forward_ns = imported.forward_ns;
  const bool has_parameters = imported.parameter_bytes > 0;
  layer.backward_weight_ns = has_parameters ? imported.backward_ns / 2 : 0;
  layer.backward_input_ns = imported.backward_ns - layer.backward_weight_ns;
  LayerMemory& memory = layer.memory;
  memory.parameter_bytes = imported.parameter_bytes;
  memory.optimizer_bytes = imported.optimizer_bytes;
  memory.output_bytes = imported.output_bytes;
  memory.input_last_use = has_parameters ? LastUse::kBackwardWeight : LastUse::kBackwardInput;
  memory.output_last_use = LastUse::kBackwardInput;
  memory.output_gradient_last_use = memory.input_last_use;
  return layer;
}

absl::StatusOr<double> ParseMilliseconds(absl::string_view text) {
  ASSIGN_OR_RETURN(const double ms, ParseNumber(text, schedule::kMaxTimeNs / 1e6, "a time in ms"));
  return std::round(ms * 1e9) / 1e3;
}

absl::StatusOr<int64_t> ParseByteCount(absl::string_view text) {
  ASSIGN_OR_RETURN(const double bytes,
                   ParseNumber(text, static_cast<double>(schedule::kMaxSizeBytes), "bytes"));
  return std::llround(bytes);
}

}  // namespace stagecoach::partition
