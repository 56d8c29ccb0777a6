#ifndef STAGECOACH_TESTS_FUZZ_SUPPORT_FUZZ_H_
#define STAGECOACH_TESTS_FUZZ_SUPPORT_FUZZ_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"

namespace stagecoach::fuzz {

// Defined by each target: passes the bytes to a parser, checks the result, and returns the error if
// the parser refused them. A broken promise aborts, so that libFuzzer keeps the input. entry.cc
// calls it.
absl::Status Try(absl::string_view input);

// Checks that whatever parses can be written, and then parses again as the same value.
template <typename T, typename Parse, typename Write>
absl::Status CheckRoundTrip(absl::string_view input, Parse parse, Write write) {
  const absl::StatusOr<T> value = parse(input);
  if (!value.ok()) return value.status();
  const std::string text = write(*value);
  const absl::StatusOr<T> again = parse(text);
  STAGECOACH_CHECK(again.ok(), absl::StrCat(again.status().ToString(), " in\n", text));
  STAGECOACH_CHECK(*again == *value, absl::StrCat("reads back as another value:\n", text));
  return absl::OkStatus();
}

}  // namespace stagecoach::fuzz

#endif  // STAGECOACH_TESTS_FUZZ_SUPPORT_FUZZ_H_
