#include "partition/files/csv_profile.h"
#include "tests/fuzz/profile_round_trip.h"

namespace stagecoach::fuzz {

void Try(absl::string_view input) {
  CheckProfileRoundTrip(partition::ParseCsvProfile(input, "fuzz"));
}

}  // namespace stagecoach::fuzz
