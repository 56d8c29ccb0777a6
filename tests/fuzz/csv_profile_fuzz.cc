#include "partition/io/csv_profile.h"
#include "tests/fuzz/support/profile_round_trip.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  return CheckProfileRoundTrip(partition::ParseCsvProfile(input, "fuzz"));
}

}  // namespace stagecoach::fuzz
