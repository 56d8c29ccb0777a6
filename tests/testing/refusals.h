#ifndef STAGECOACH_TESTS_TESTING_REFUSALS_H_
#define STAGECOACH_TESTS_TESTING_REFUSALS_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::testing {

// A row of a table of refusals, with a code only where it is not that of the table:
//   const Refusal<std::string> refusals[] = {
//       {"{", "1:2: expected a key"},
//       {"[]", "an object"},
//   };
template <typename Input>
struct Refusal {
  Input input;
  Says says;
  std::optional<absl::StatusCode> code = std::nullopt;
};

// Expects that `read`, which returns a Status or StatusOr, refuses the input of every row:
//   ExpectRefusals(ParsePlan, refusals);
template <typename Read, typename Input, size_t kRows>
void ExpectRefusals(const Read& read, const Refusal<Input> (&rows)[kRows],
                    absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  for (size_t i = 0; i < kRows; ++i) {
    SCOPED_TRACE("row " + std::to_string(i) + " of the table");
    EXPECT_THAT(read(rows[i].input), StatusIs(rows[i].code.value_or(code), rows[i].says));
  }
}

// Returns `text` with its first `piece`, which must be there, replaced; in both, ' stands for ":
//   Edited(plan, "'layers': 20", "'layers': 0")
inline std::string Edited(std::string text, absl::string_view piece,
                          absl::string_view replacement) {
  const std::string quoted = absl::StrReplaceAll(piece, {{"'", "\""}});
  const size_t at = text.find(quoted);
  EXPECT_NE(at, std::string::npos) << quoted << " is not in " << text;
  if (at == std::string::npos) return text;
  return text.replace(at, quoted.size(), absl::StrReplaceAll(replacement, {{"'", "\""}}));
}

// An input that is a change of a valid value:
//   const Refusal<Change<Plan>> refusals[] = {{[](Plan& plan) { plan.num_layers = 0; }, "layers"}};
template <typename Value>
using Change = std::function<void(Value&)>;

// Expects that `check` accepts `good`, and refuses it after the change of any row:
//   ExpectRefusedChanges(SmallPlan(), CheckPlan, refusals);
template <typename Value, typename Check, size_t kRows>
void ExpectRefusedChanges(const Value& good, const Check& check,
                          const Refusal<Change<Value>> (&rows)[kRows]) {
  EXPECT_OK(check(good));
  const auto check_changed = [&](const Change<Value>& change) {
    Value value = good;
    change(value);
    return GetStatus(check(value));
  };
  ExpectRefusals(check_changed, rows);
}

// A Status or StatusOr that a call returned, of which only the status counts.
struct Returned {
  template <typename Result>
  Returned(const Result& result)  // NOLINT(google-explicit-constructor): rows hold calls
      : status(GetStatus(result)) {}

  absl::Status status;
};

// Expects that the calls of all rows were refused:
//   ExpectRefusals({
//       {Open(""), "the path is empty"},
//       {Open("/none"), "no such file", absl::StatusCode::kNotFound},
//   });
template <size_t kRows>
void ExpectRefusals(const Refusal<Returned> (&rows)[kRows],
                    absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
  ExpectRefusals([](const Returned& returned) { return returned.status; }, rows, code);
}

}  // namespace stagecoach::testing

#endif  // STAGECOACH_TESTS_TESTING_REFUSALS_H_
