#include "tools/schedule_option.h"

#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "schedule/files/schedule_file.h"
#include "schedule/generators.h"
#include "tools/exit_status.h"
#include "tools/flags.h"

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

bool IsScheduleFile(const std::string& value) {
  return absl::EndsWith(value, ".csv") || absl::EndsWith(value, ".json");
}

absl::StatusOr<std::string> ParseScheduleOption(const std::string& value) {
  if (IsScheduleFile(value)) return value;
  absl::StatusOr<std::string> name = ParseChoice(value, Names());
  if (name.ok()) return name;
  return absl::InvalidArgumentError(
      absl::StrCat(name.status().message(), ", or a file that ends in .csv or .json"));
}

absl::StatusOr<schedule::Schedule> ReadScheduleOption(const std::string& path,
                                                      const std::optional<int>& stages,
                                                      const std::optional<int>& micro_batches) {
  ASSIGN_OR_RETURN(schedule::Schedule schedule,
                   From(Origin::kData, schedule::ReadScheduleFile(path)));
  RETURN_IF_ERROR(CheckCount("--stages", stages, schedule.num_ranks()));
  RETURN_IF_ERROR(CheckCount("--microbatches", micro_batches, schedule.num_micro_batches));
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
