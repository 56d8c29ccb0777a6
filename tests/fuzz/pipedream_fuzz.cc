#include "partition/files/pipedream_profile.h"
#include "tests/fuzz/profile_round_trip.h"

namespace stagecoach::fuzz {

void Try(absl::string_view input) {
  CheckProfileRoundTrip(partition::ParsePipedreamProfile(input, "fuzz"));
}

}  // namespace stagecoach::fuzz
