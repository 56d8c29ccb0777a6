#include "schedule/files/csv.h"
#include "schedule/schedule.h"
#include "tests/fuzz/fuzz.h"

namespace stagecoach::fuzz {

void Try(absl::string_view input) {
  CheckRoundTrip<schedule::Schedule>(
      input, [](absl::string_view text) { return schedule::ParseScheduleCsv(text, "fuzz"); },
      schedule::ToScheduleCsv);
}

}  // namespace stagecoach::fuzz
