#include "partition/files/transformer_profile.h"
#include "tests/fuzz/profile_round_trip.h"

namespace stagecoach::fuzz {

void Try(absl::string_view input) {
  CheckProfileRoundTrip(partition::ParseTransformerProfile(input, "fuzz"));
}

}  // namespace stagecoach::fuzz
