#ifndef STAGECOACH_TESTS_PARTITION_PUBLISHED_H_
#define STAGECOACH_TESTS_PARTITION_PUBLISHED_H_

#include <string>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "partition/cost/profile.h"
#include "partition/io/pipedream_profile.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {

// Returns a network that PipeDream (Narayanan et al. 2019) was published with: alexnet, resnet50,
// vgg16.
inline Profile Published(const std::string& name) {
  const absl::StatusOr<Profile> profile = ReadPipedreamProfile(
      absl::StrCat(STAGECOACH_PARTITION_TEST_DATA, "/pipedream/", name, ".txt"));
  EXPECT_OK(profile);
  return profile.value_or(Profile());
}

}  // namespace stagecoach::partition

#endif  // STAGECOACH_TESTS_PARTITION_PUBLISHED_H_
