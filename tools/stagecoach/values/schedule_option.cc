#include "tools/stagecoach/values/schedule_option.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/text/nearest.h"
#include "schedule/generators/generators.h"
#include "schedule/io/schedule_file.h"

namespace stagecoach::tools {
namespace {

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const schedule::Generator& generator : schedule::Generators()) {
    names.emplace_back(generator.name);
  }
  names.emplace_back(kAutomatic);
  return names;
}

}  // namespace

absl::StatusOr<std::string> ParseScheduleOption(const std::string& value) {
  if (schedule::IsScheduleFile(value)) return value;
  const std::vector<std::string> names = Names();
  if (std::find(names.begin(), names.end(), value) != names.end()) return value;
  const std::string nearest = base::Nearest(value, names);
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(value), "\" is neither one of ",
                   absl::StrJoin(names, ", "), " nor - or a file that ends in .csv or .json",
                   nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

std::string DescribeSchedules() {
  std::string text = "Schedules:\n";
  for (const schedule::Generator& generator : schedule::Generators()) {
    absl::StrAppendFormat(&text, "  %-12s %s\n", generator.name, generator.summary);
  }
  absl::StrAppendFormat(&text, "  %-12s %s\n", kAutomatic,
                        "the shortest that a search finds for the given times and memory");
  absl::StrAppendFormat(&text, "  %-12s %s\n", "FILE", "a .csv of PyTorch's form, or a .json");
  return text;
}

}  // namespace stagecoach::tools
