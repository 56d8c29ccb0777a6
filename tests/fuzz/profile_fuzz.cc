#include "partition/files/profile_file.h"
#include "tests/fuzz/profile_round_trip.h"

namespace stagecoach::fuzz {

void Try(absl::string_view input) { CheckProfileRoundTrip(partition::ParseProfileJson(input)); }

}  // namespace stagecoach::fuzz
