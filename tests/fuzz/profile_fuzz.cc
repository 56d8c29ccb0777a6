#include "partition/io/profile_file.h"
#include "tests/fuzz/support/profile_round_trip.h"

namespace stagecoach::fuzz {

absl::Status Try(absl::string_view input) {
  return CheckProfileRoundTrip(partition::ParseProfileJson(input));
}

}  // namespace stagecoach::fuzz
