#include "tools/cli/schedule_option.h"

#include <algorithm>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/nearest.h"
#include "base/status_macros.h"
#include "schedule/files/schedule_file.h"
#include "schedule/generators.h"
#include "tools/cli/exit_status.h"

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

absl::Status CheckCount(const char* flag, const std::optional<int>& asked, int found) {
  if (!asked.has_value() || *asked == found) return absl::OkStatus();
  return From(Origin::kConfiguration,
              absl::InvalidArgumentError(absl::StrCat(flag, " is ", *asked,
                                                      ", but the schedule in the file has ", found,
                                                      ": leave the flag out")));
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

absl::StatusOr<schedule::Schedule> ReadScheduleOption(const std::string& path,
                                                      const AskedShape& asked) {
  ASSIGN_OR_RETURN(schedule::Schedule schedule,
                   From(Origin::kData, schedule::ReadScheduleFile(path)));
  RETURN_IF_ERROR(CheckCount("--devices", asked.stages, schedule.num_ranks()));
  RETURN_IF_ERROR(CheckCount("--microbatches", asked.micro_batches, schedule.num_micro_batches));
  if (asked.chunks != 0) {
    RETURN_IF_ERROR(
        CheckCount("--chunks", asked.chunks, schedule.num_stages() / schedule.num_ranks()));
  }
  return schedule;
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
