#ifndef STAGECOACH_TESTS_TESTING_STATUS_MATCHERS_H_
#define STAGECOACH_TESTS_TESTING_STATUS_MATCHERS_H_

#include <string>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"

namespace stagecoach::testing {

inline const absl::Status& GetStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& result) {
  return result.status();
}

// Matches a Status or StatusOr that is OK.
MATCHER(IsOk, negation ? "is not OK" : "is OK") {
  *result_listener << GetStatus(arg).ToString();
  return GetStatus(arg).ok();
}

// Matches a Status or StatusOr with this code:  EXPECT_THAT(Load(path), StatusIs(kNotFound)).
MATCHER_P(StatusIs, code, "has the code " + absl::StatusCodeToString(code)) {
  *result_listener << GetStatus(arg).ToString();
  return GetStatus(arg).code() == code;
}

// What a message says: a part of it, or a matcher of all of it.
class Says {
 public:
  template <typename What>
  Says(const What& what)  // NOLINT(google-explicit-constructor): for texts and for matchers
      : matcher_(MatcherOf(what)) {}

  const ::testing::Matcher<std::string>& matcher() const { return matcher_; }

 private:
  template <typename What>
  static ::testing::Matcher<std::string> MatcherOf(const What& what) {
    if constexpr (std::is_convertible_v<What, absl::string_view>) {
      return ::testing::HasSubstr(std::string(absl::string_view(what)));
    } else {
      return what;
    }
  }

  ::testing::Matcher<std::string> matcher_;
};

// Matches one with this code and a message that says this:
//   EXPECT_THAT(Load(path), StatusIs(kNotFound, "no such file"));
MATCHER_P2(StatusIs, code, says,
           "has the code " + absl::StatusCodeToString(code) + " and a message that " +
               ::testing::DescribeMatcher<std::string>(Says(says).matcher())) {
  const absl::Status& status = GetStatus(arg);
  *result_listener << status.ToString();
  return status.code() == code && Says(says).matcher().Matches(std::string(status.message()));
}

// Matches one that refuses a value and says this:  EXPECT_THAT(Read(text), IsRefused("line 3")).
inline auto IsRefused(const Says& says) {
  return StatusIs(absl::StatusCode::kInvalidArgument, says);
}

}  // namespace stagecoach::testing

#define EXPECT_OK(expression) EXPECT_THAT((expression), ::stagecoach::testing::IsOk())
#define ASSERT_OK(expression) ASSERT_THAT((expression), ::stagecoach::testing::IsOk())

// Ends the test unless `expression`, an absl::StatusOr, holds a value; moves it into `lhs`, which
// may be a declaration:  ASSERT_OK_AND_ASSIGN(auto plan, ReadPlan(path));
#define ASSERT_OK_AND_ASSIGN(lhs, expression) \
  STAGECOACH_ASSERT_OK_AND_ASSIGN_(STAGECOACH_UNIQUE_NAME_(result_, __COUNTER__), lhs, expression)
#define STAGECOACH_ASSERT_OK_AND_ASSIGN_(result, lhs, expression) \
  auto result = (expression);                                     \
  ASSERT_OK(result.status());                                     \
  lhs = *std::move(result)

#endif  // STAGECOACH_TESTS_TESTING_STATUS_MATCHERS_H_
