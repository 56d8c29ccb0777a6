#include "tools/stagecoach/launch/sweep_grid.h"

#include <cstdint>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace stagecoach::tools {
namespace {

constexpr uint64_t kMostOfARange = 1000;

// Returns the numbers of "1..3"; of other texts none. InvalidArgument: a range of none, or of too
// many.
absl::StatusOr<std::vector<std::string>> RangeOf(const std::string& text) {
  const std::pair<std::string, std::string> ends = absl::StrSplit(text, absl::MaxSplits("..", 1));
  int64_t first = 0, last = 0;
  std::vector<std::string> numbers;
  if (!absl::SimpleAtoi(ends.first, &first) || !absl::SimpleAtoi(ends.second, &last)) {
    return numbers;
  }
  if (last < first) return absl::InvalidArgumentError("the range ends before it begins");
  if (static_cast<uint64_t>(last) - static_cast<uint64_t>(first) >= kMostOfARange) {
    return absl::InvalidArgumentError(
        absl::StrCat("the range has more than ", kMostOfARange, " numbers"));
  }
  for (int64_t number = first; number <= last; ++number) numbers.push_back(absl::StrCat(number));
  return numbers;
}

}  // namespace

absl::StatusOr<SweptFlag> ParseSweptFlag(const std::string& text) {
  const auto refuse = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": ", why,
                                                   "; what is swept is written as seed=1..5 or ",
                                                   "learning-rate=1e-3,3e-3"));
  };
  const size_t equals = text.find('=');
  if (equals == std::string::npos) return refuse("there are no values");
  SweptFlag flag = {.name = text.substr(0, equals)};
  while (flag.name.starts_with('-')) flag.name.erase(0, 1);
  if (flag.name.empty()) return refuse("there is no flag");
  const std::string values = text.substr(equals + 1);
  absl::StatusOr<std::vector<std::string>> range = RangeOf(values);
  if (!range.ok()) return refuse(range.status().message());
  flag.values = *std::move(range);
  if (flag.values.empty()) flag.values = absl::StrSplit(values, ',');
  std::set<std::string> seen;
  for (const std::string& value : flag.values) {
    if (value.empty()) return refuse("a value is empty");
    if (!seen.insert(value).second) return refuse("a value is there twice");
  }
  return flag;
}

std::vector<SweptValues> Combinations(absl::Span<const SweptFlag> flags) {
  std::vector<SweptValues> all = {{}};
  for (const SweptFlag& flag : flags) {
    std::vector<SweptValues> longer;
    for (const SweptValues& before : all) {
      for (const std::string& value : flag.values) {
        longer.push_back(before);
        longer.back().push_back(value);
      }
    }
    all = std::move(longer);
  }
  return all;
}

std::string Describe(absl::Span<const SweptFlag> flags, const SweptValues& values) {
  std::vector<std::string> parts;
  for (size_t i = 0; i < flags.size(); ++i) {
    parts.push_back(absl::StrCat(flags[i].name, "=", values[i]));
  }
  return absl::StrJoin(parts, " ");
}

}  // namespace stagecoach::tools
