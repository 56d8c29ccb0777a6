#include "schedule/io/schedule_file.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "schedule/generators/generators.h"
#include "schedule/io/csv.h"
#include "schedule/io/file_check.h"

namespace stagecoach::schedule {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{256} << 20;
constexpr absl::string_view kFormat = "stagecoach-schedule";
constexpr int64_t kVersion = 1;

enum class FileForm : uint8_t { kCsv, kJson };

absl::StatusOr<FileForm> FormOf(const std::string& path) {
  if (base::IsStream(path)) return FileForm::kJson;
  if (absl::EndsWithIgnoreCase(path, ".csv")) return FileForm::kCsv;
  if (absl::EndsWithIgnoreCase(path, ".json")) return FileForm::kJson;
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": the name of a schedule's file must end in .csv or .json"));
}

absl::Status ReadHeader(base::ObjectReader& reader) {
  ASSIGN_OR_RETURN(const std::string format, reader.RequiredString("format"));
  if (format != kFormat) {
    return reader.Error("format", absl::StrCat("must be \"", kFormat, "\": not a schedule"));
  }
  return reader.RequiredInt64("version", {.min = kVersion, .max = kVersion}).status();
}

absl::StatusOr<std::vector<Rank>> ReadRanks(const base::ArrayReader& array, size_t num_ranks) {
  std::vector<Rank> ranks;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(const int64_t rank,
                     array.Int64(i, {.min = 0, .max = static_cast<int64_t>(num_ranks) - 1}));
    ranks.emplace_back(static_cast<int32_t>(rank));
  }
  return ranks;
}

absl::StatusOr<std::vector<CollectiveGroup>> ReadGroups(const base::ArrayReader& array,
                                                        size_t num_ranks) {
  std::vector<CollectiveGroup> groups;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(base::ObjectReader reader, array.Object(i));
    CollectiveGroup& group = groups.emplace_back();
    ASSIGN_OR_RETURN(group.name, reader.RequiredString("name"));
    ASSIGN_OR_RETURN(const base::ArrayReader ranks, reader.RequiredArray("ranks"));
    ASSIGN_OR_RETURN(group.ranks, ReadRanks(ranks, num_ranks));
    RETURN_IF_ERROR(reader.Finish());
  }
  return groups;
}

absl::StatusOr<std::vector<Action>> ReadActions(const base::ArrayReader& array) {
  std::vector<Action> actions;
  for (size_t i = 0; i < array.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string code, array.String(i));
    const absl::StatusOr<Action> action = ParseCode(code);
    if (!action.ok()) return array.Error(i, action.status().message());
    actions.push_back(*action);
  }
  return actions;
}

// Appends ["a", ...] with line breaks after at most 100 columns, each line after the first indented
// by one more than `indent`, the column of the bracket.
void AppendArray(const std::vector<std::string>& elements, size_t indent, std::string& text) {
  constexpr size_t kWidth = 100;
  text += '[';
  size_t column = indent + 1;
  for (size_t i = 0; i < elements.size(); ++i) {
    const bool is_last = i + 1 == elements.size();
    const size_t width = elements[i].size() + 1;  // including the comma or bracket behind it
    if (i > 0 && column + 1 + width > kWidth) {
      absl::StrAppend(&text, "\n", std::string(indent + 1, ' '));
      column = indent + 1;
    } else if (i > 0) {
      text += ' ';
      ++column;
    }
    absl::StrAppend(&text, elements[i], is_last ? "" : ",");
    column += width;
  }
  text += ']';
}

// Replaces invalid UTF-8, since printing such a string would throw.
std::string QuotedName(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::vector<std::string> Numbers(const std::vector<Rank>& ranks) {
  std::vector<std::string> numbers;
  for (const Rank rank : ranks) numbers.push_back(absl::StrCat(rank.value()));
  return numbers;
}

// Appends the key and its value, if there are groups.
void AppendGroups(const std::vector<CollectiveGroup>& groups, std::string& text) {
  if (groups.empty()) return;
  absl::string_view separator = ",\n  \"groups\": [\n";
  for (const CollectiveGroup& group : groups) {
    const std::string start =
        absl::StrCat("    {\"name\": ", QuotedName(group.name), ", \"ranks\": ");
    absl::StrAppend(&text, separator, start);
    AppendArray(Numbers(group.ranks), start.size(), text);
    text += '}';
    separator = ",\n";
  }
  text += "\n  ]";
}

}  // namespace

absl::StatusOr<Schedule> ParseScheduleJson(absl::string_view text) {
  ASSIGN_OR_RETURN(const nlohmann::json json, base::ParseJson(text, {.max_bytes = kMaxFileBytes}));
  const auto read = [&]() -> absl::StatusOr<Schedule> {
    ASSIGN_OR_RETURN(base::ObjectReader reader, base::ObjectReader::Create(json));
    return ReadSchedule(reader);
  };
  absl::StatusOr<Schedule> schedule = read();
  if (!schedule.ok()) return base::WithJsonPlace(schedule.status(), text);
  return schedule;
}

absl::StatusOr<Schedule> ReadSchedule(base::ObjectReader& reader) {
  RETURN_IF_ERROR(ReadHeader(reader));
  Schedule schedule;
  ASSIGN_OR_RETURN(schedule.name, reader.RequiredString("name"));
  ASSIGN_OR_RETURN(const int64_t micro_batches,
                   reader.RequiredInt64("micro_batches", {.min = 1, .max = kMaxPasses}));
  schedule.num_micro_batches = static_cast<int>(micro_batches);
  ASSIGN_OR_RETURN(const base::ArrayReader placement, reader.RequiredArray("rank_of_stage"));
  ASSIGN_OR_RETURN(const base::ArrayReader ranks, reader.RequiredArray("ranks"));
  ASSIGN_OR_RETURN(const std::optional<base::ArrayReader> groups, reader.OptionalArray("groups"));
  RETURN_IF_ERROR(reader.Finish());

  if (ranks.size() == 0) return reader.Error("ranks", "must have at least one list");
  if (placement.size() == 0) return reader.Error("rank_of_stage", "must have at least one stage");
  ASSIGN_OR_RETURN(schedule.rank_of_stage, ReadRanks(placement, ranks.size()));
  if (groups.has_value()) {
    ASSIGN_OR_RETURN(schedule.groups, ReadGroups(*groups, ranks.size()));
  }
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    ASSIGN_OR_RETURN(const base::ArrayReader list, ranks.Array(rank));
    ASSIGN_OR_RETURN(schedule.actions.emplace_back(), ReadActions(list));
    const Rank own(static_cast<int32_t>(rank));
    if (std::find(schedule.rank_of_stage.begin(), schedule.rank_of_stage.end(), own) ==
        schedule.rank_of_stage.end()) {
      return ranks.Error(rank, "no stage is on this rank");
    }
  }
  RETURN_IF_ERROR(base::Annotate(CheckSize(schedule), reader.path()));
  RETURN_IF_ERROR(ProveFromFile(schedule, [&](Rank rank, size_t index) {
    const bool is_end = index >= schedule.list_of(rank).size();
    return absl::StrCat(ranks.path(), "[", rank.value(), "]",
                        is_end ? "" : absl::StrCat("[", index, "]"));
  }));
  return schedule;
}

std::string ToScheduleJson(const Schedule& schedule) {
  const std::string name = QuotedName(schedule.name);
  std::string text =
      absl::StrCat("{\n  \"format\": \"", kFormat, "\",\n  \"version\": ", kVersion,
                   ",\n  \"name\": ", name, ",\n  \"micro_batches\": ", schedule.num_micro_batches);
  std::vector<std::string> elements = Numbers(schedule.rank_of_stage);
  const absl::string_view placement_key = "  \"rank_of_stage\": ";
  absl::StrAppend(&text, ",\n", placement_key);
  AppendArray(elements, placement_key.size(), text);
  AppendGroups(schedule.groups, text);
  absl::StrAppend(&text, ",\n  \"ranks\": [");
  absl::string_view separator = "\n    ";
  for (const std::vector<Action>& list : schedule.actions) {
    elements.clear();
    for (const Action& action : list) elements.push_back(absl::StrCat("\"", ToCode(action), "\""));
    absl::StrAppend(&text, separator);
    AppendArray(elements, 4, text);
    separator = ",\n    ";
  }
  return absl::StrCat(text, "\n  ]\n}\n");
}

bool IsScheduleFile(const std::string& path) { return FormOf(path).ok(); }

absl::StatusOr<Schedule> ReadScheduleFile(const std::string& path) {
  ASSIGN_OR_RETURN(FileForm form, FormOf(path));
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, kMaxFileBytes));
  const bool is_json = absl::StartsWith(absl::StripLeadingAsciiWhitespace(text), "{");
  if (base::IsStream(path) && !is_json) form = FileForm::kCsv;
  absl::StatusOr<Schedule> schedule =
      form == FileForm::kJson
          ? ParseScheduleJson(text)
          : ParseScheduleCsv(text, std::filesystem::path(base::InputName(path)).stem().string());
  if (!schedule.ok()) return base::InFile(schedule.status(), path);
  return schedule;
}

absl::Status WriteScheduleFile(const std::string& path, const Schedule& schedule) {
  ASSIGN_OR_RETURN(const FileForm form, FormOf(path));
  if (form == FileForm::kJson) return base::WriteFileAtomically(path, ToScheduleJson(schedule));
  const std::string csv = ToScheduleCsv(schedule);
  const absl::StatusOr<Schedule> read = ParseScheduleCsv(csv, schedule.name);
  if (!read.ok() || *read != schedule) {
    return absl::InvalidArgumentError(absl::StrCat(path,
                                                   ": a CSV cannot keep this schedule (it has no "
                                                   "place for steps, collectives and copies to the "
                                                   "host, and none for a rank without actions); "
                                                   "save it as .json"));
  }
  return base::WriteFileAtomically(path, csv);
}

}  // namespace stagecoach::schedule
