#ifndef STAGECOACH_TESTS_FUZZ_SUPPORT_PROFILE_ROUND_TRIP_H_
#define STAGECOACH_TESTS_FUZZ_SUPPORT_PROFILE_ROUND_TRIP_H_

#include <string>

#include "absl/status/statusor.h"
#include "partition/cost/profile.h"
#include "partition/io/profile_file.h"
#include "tests/fuzz/support/fuzz.h"

namespace stagecoach::fuzz {

// Checks that a profile of any origin passes CheckProfile and can be written, and that what has
// been written once reads back unchanged. (The first time, times are rounded and names made UTF-8.)
inline absl::Status CheckProfileRoundTrip(const absl::StatusOr<partition::Profile>& profile) {
  if (!profile.ok()) return profile.status();
  STAGECOACH_CHECK_OK(partition::CheckProfile(*profile));
  // A few words describe a transformer of the largest allowed number of layers. That would take a
  // minute.
  constexpr int kMaxWritten = 2000;
  const int costs = profile->num_layers() * static_cast<int>(profile->sizes.size());
  if (costs > kMaxWritten) return absl::OkStatus();
  const std::string text = partition::ToProfileJson(*profile);
  const absl::StatusOr<partition::Profile> written = partition::ParseProfileJson(text);
  STAGECOACH_CHECK(written.ok(), absl::StrCat(written.status().ToString(), " in\n", text));
  STAGECOACH_CHECK(written->num_layers() == profile->num_layers(), text);
  return CheckRoundTrip<partition::Profile>(text, partition::ParseProfileJson,
                                            partition::ToProfileJson);
}

}  // namespace stagecoach::fuzz

#endif  // STAGECOACH_TESTS_FUZZ_SUPPORT_PROFILE_ROUND_TRIP_H_
