#include "schedule/trace.h"
#include "schedule/traces/chrome_trace.h"
#include "schedule/traces/trace_diff.h"
#include "tests/fuzz/fuzz.h"

namespace stagecoach::fuzz {

void Try(absl::string_view input) {
  CheckRoundTrip<schedule::Trace>(input, schedule::ParseChromeTrace, schedule::ToChromeTrace);
  // What reads is ready to be compared.
  const absl::StatusOr<schedule::Trace> trace = schedule::ParseChromeTrace(input);
  if (!trace.ok()) return;
  const absl::StatusOr<schedule::TraceDiff> diff = schedule::DiffTraces(*trace, *trace);
  STAGECOACH_CHECK_OK(diff);
  STAGECOACH_CHECK(diff->difference_ns() == 0, schedule::ToText(*diff));
}

}  // namespace stagecoach::fuzz
