#include "schedule/io/schedule_file.h"
#include "schedule/ir/schedule.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  return CheckRoundTrip<schedule::Schedule>(input, schedule::ParseScheduleJson,
                                            schedule::ToScheduleJson);
}

}  // namespace stagecoach::fuzz
