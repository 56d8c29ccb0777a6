#include "schedule/io/csv.h"
#include "schedule/ir/schedule.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  return CheckRoundTrip<schedule::Schedule>(
      input, [](absl::string_view text) { return schedule::ParseScheduleCsv(text, "fuzz"); },
      schedule::ToScheduleCsv);
}

}  // namespace stagecoach::fuzz
