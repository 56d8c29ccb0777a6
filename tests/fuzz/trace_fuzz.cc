#include "base/status_macros.h"
#include "schedule/traces/chrome_trace.h"
#include "schedule/traces/trace.h"
#include "schedule/traces/trace_diff.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

// Whatever can be read can also be compared.
absl::Status Try(absl::string_view input) {
  RETURN_IF_ERROR(
      CheckRoundTrip<schedule::Trace>(input, schedule::ParseChromeTrace, schedule::ToChromeTrace));
  const schedule::Trace trace = schedule::ParseChromeTrace(input).value();
  const absl::StatusOr<schedule::TraceDiff> diff = schedule::DiffTraces(trace, trace);
  STAGECOACH_CHECK_OK(diff);
  STAGECOACH_CHECK(diff->difference_ns() == 0, schedule::ToText(*diff));
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz
