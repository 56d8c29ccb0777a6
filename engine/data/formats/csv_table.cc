#include "engine/data/formats/csv_table.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/charconv.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/nearest.h"

namespace stagecoach::engine {
namespace {

using base::CsvField;
using base::CsvReader;

std::string ListColumns(absl::Span<const std::string> columns) {
  constexpr size_t kMostListed = 20;
  std::string list = absl::StrJoin(columns.subspan(0, kMostListed), ", ");
  if (columns.size() > kMostListed) {
    absl::StrAppend(&list, " and ", columns.size() - kMostListed, " more");
  }
  return list;
}

absl::StatusOr<std::vector<std::string>> ReadColumns(CsvReader& reader) {
  std::vector<CsvField> record;
  ASSIGN_OR_RETURN(const bool found, reader.Next(record));
  if (!found) {
    return CsvReader::ErrorAt({},
                              "the file is empty, expected a header row that names the columns");
  }
  std::vector<std::string> columns;
  std::set<std::string> seen;
  for (const CsvField& field : record) {
    if (!seen.insert(field.text).second) {
      return CsvReader::ErrorAt(
          field.position, absl::StrFormat("a second column is named \"%s\", expected each name "
                                          "once",
                                          field.text));
    }
    if (!base::IsUtf8(field.text)) {
      return CsvReader::ErrorAt(field.position, "the name of the column is not UTF-8");
    }
    columns.push_back(field.text);
  }
  return columns;
}

bool Contains(absl::Span<const std::string> names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

absl::Status CheckHasColumn(absl::Span<const std::string> columns, absl::string_view kind,
                            const std::string& name) {
  if (Contains(columns, name)) return absl::OkStatus();
  std::string message =
      absl::StrFormat("no %s \"%s\"; the columns are %s", kind, name, ListColumns(columns));
  const std::string nearest = base::Nearest(name, columns);
  if (!nearest.empty()) absl::StrAppend(&message, "; did you mean \"", nearest, "\"?");
  return CsvReader::ErrorAt({}, message);
}

using RoleKind = CsvRole::Kind;

// Returns the number of a name among others; their count: it is none of them.
size_t IndexOf(absl::Span<const std::string> names, const std::string& name) {
  return static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
}

// Returns an error unless labels of that number and kind can be learned.
absl::Status CheckLabelColumns(absl::Span<const std::string> columns,
                               absl::Span<const std::string> labels, const CsvOptions& options) {
  for (size_t i = 0; i < labels.size(); ++i) {
    RETURN_IF_ERROR(CheckHasColumn(columns, "label column", labels[i]));
    if (Contains(options.dropped_columns, labels[i])) {
      return CsvReader::ErrorAt({}, absl::StrFormat("the column \"%s\" is to be dropped, but has "
                                                    "the labels",
                                                    labels[i]));
    }
    if (IndexOf(labels, labels[i]) != i) {
      return CsvReader::ErrorAt(
          {}, absl::StrFormat("the label column \"%s\" is named twice", labels[i]));
    }
  }
  if (labels.size() == 1 || options.labels == LabelKind::kNumbers) return absl::OkStatus();
  return CsvReader::ErrorAt(
      {}, absl::StrFormat("labels in %d columns (%s) are numbers, which are predicted with --loss "
                          "mse; classes are in one column",
                          labels.size(), absl::StrJoin(labels, ", ")));
}

// All columns but those of the labels and those that are dropped are features.
absl::StatusOr<CsvHeader> HeaderToTrain(std::vector<std::string> columns,
                                        const CsvOptions& options) {
  CsvHeader header = {.columns = std::move(columns)};
  header.labels = LabelColumnsOf(header.columns, options.label_column);
  RETURN_IF_ERROR(CheckLabelColumns(header.columns, header.labels, options));
  for (const std::string& dropped : options.dropped_columns) {
    RETURN_IF_ERROR(CheckHasColumn(header.columns, "column to drop,", dropped));
  }
  for (const std::string& column : header.columns) {
    CsvRole& role = header.roles.emplace_back();
    if (Contains(header.labels, column)) {
      role = {RoleKind::kLabel, IndexOf(header.labels, column)};
    } else if (!Contains(options.dropped_columns, column)) {
      role = {RoleKind::kFeature, static_cast<size_t>(header.features++)};
    }
  }
  if (header.features == 0) {
    return CsvReader::ErrorAt(
        {}, "there is no column beside the labels, expected at least one feature");
  }
  return header;
}

// Returns the header of another file to train on, which has the columns of the first one in any
// order; those that are dropped may be missing.
absl::StatusOr<CsvHeader> HeaderLike(const CsvHeader& first, const std::string& first_file,
                                     std::vector<std::string> columns) {
  CsvHeader header = first;
  header.roles.clear();
  for (const std::string& column : columns) {
    const size_t same = IndexOf(first.columns, column);
    if (same == first.columns.size()) {
      return CsvReader::ErrorAt(
          {}, absl::StrFormat("a column \"%s\", which %s does not have; its columns are %s", column,
                              first_file, ListColumns(first.columns)));
    }
    header.roles.push_back(first.roles[same]);
  }
  for (size_t i = 0; i < first.columns.size(); ++i) {
    if (first.roles[i].kind == RoleKind::kDropped || Contains(columns, first.columns[i])) continue;
    return CsvReader::ErrorAt(
        {}, absl::StrFormat("no column \"%s\", which %s has; the columns are %s", first.columns[i],
                            first_file, ListColumns(columns)));
  }
  header.columns = std::move(columns);
  return header;
}

// Returns the columns of the labels in data for a model, which may be called otherwise than those
// it was trained on.
absl::StatusOr<std::vector<std::string>> LabelsToPredict(const CsvOptions& options,
                                                         const DataEncoding& encoding) {
  const std::vector<std::string>& known = encoding.label_names;
  if (known.empty()) return std::vector<std::string>{options.label_column};
  if (options.label_column == CsvOptions().label_column) return known;
  std::vector<std::string> labels = absl::StrSplit(options.label_column, ',');
  if (labels.size() == known.size()) return labels;
  return CsvReader::ErrorAt(
      {}, absl::StrFormat("the model predicts %d numbers (%s), but the label columns are %s",
                          known.size(), absl::StrJoin(known, ", "), options.label_column));
}

// The columns of the encoding are features, in any order; those of the labels may be missing.
absl::StatusOr<CsvHeader> HeaderToPredict(std::vector<std::string> columns,
                                          const CsvOptions& options, const DataEncoding& encoding) {
  ASSIGN_OR_RETURN(const std::vector<std::string> labels, LabelsToPredict(options, encoding));
  CsvHeader header = {.columns = std::move(columns), .features = std::ssize(encoding.columns)};
  size_t found_labels = 0;
  for (const std::string& column : header.columns) {
    CsvRole& role = header.roles.emplace_back();
    const size_t feature = IndexOf(encoding.columns, column);
    const size_t label = IndexOf(labels, column);
    if (feature < encoding.columns.size()) {
      role = {RoleKind::kFeature, feature};
    } else if (label < labels.size()) {
      role = {RoleKind::kLabel, label};
      ++found_labels;
    } else if (!Contains(options.dropped_columns, column) &&
               !Contains(encoding.dropped_columns, column)) {
      return CsvReader::ErrorAt(
          {}, absl::StrFormat("the model was not trained on a column \"%s\", but on %s", column,
                              ListColumns(encoding.columns)));
    }
  }
  const auto is_missing = [&](const std::string& name) { return !Contains(header.columns, name); };
  const auto missing = std::find_if(encoding.columns.begin(), encoding.columns.end(), is_missing);
  if (missing != encoding.columns.end()) {
    return CsvReader::ErrorAt({}, absl::StrFormat("no column \"%s\", which the model was trained "
                                                  "on; the columns are %s",
                                                  *missing, ListColumns(header.columns)));
  }
  if (found_labels == labels.size()) header.labels = labels;
  if (found_labels == 0 || found_labels == labels.size()) return header;
  return CsvReader::ErrorAt(
      {}, absl::StrFormat("no label column \"%s\", but others of %s: all are compared with what is "
                          "predicted, or none",
                          *std::find_if(labels.begin(), labels.end(), is_missing),
                          absl::StrJoin(labels, ", ")));
}

// Returns whether all of `text` is a number that a float can hold. Numbers that are too small read
// as 0.
bool ParseNumber(const std::string& text, double& value) {
  // absl::from_chars reads more than decimal numbers, such as 0x10 and inf.
  if (text.find_first_not_of("+-.0123456789eE") != std::string::npos) return false;
  const char* end = text.data() + text.size();
  const absl::from_chars_result result = absl::from_chars(text.data(), end, value);
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return false;
  // On overflow `value` is the largest double.
  return std::abs(value) <= std::numeric_limits<float>::max();
}

absl::Status NotANumber(const std::string& column, const CsvField& field) {
  return CsvReader::ErrorAt(
      field.position,
      absl::StrFormat("\"%s\" in column \"%s\" is not a finite number", field.text, column));
}

// Reads a field of a column of features; of a text, the value is its number. `unknown`: null if
// texts may be new.
absl::Status ReadFeature(const std::string& column, const CsvField& field, CsvColumn& kind,
                         UnknownTexts* unknown, double& value) {
  if (field.text.empty()) {
    return CsvReader::ErrorAt(
        field.position, absl::StrFormat("the field in column \"%s\" is empty: fill in what is "
                                        "missing, leave out the row, or the column with --drop",
                                        column));
  }
  const bool is_number = ParseNumber(field.text, value);
  if (!kind.is_known) {
    kind.is_known = true;
    kind.is_text = !is_number;
  }
  if (!kind.is_text) return is_number ? absl::OkStatus() : NotANumber(column, field);
  auto known = kind.texts.find(field.text);
  if (known == kind.texts.end() && unknown != nullptr) {
    if (unknown->count++ == 0) {
      unknown->column = column;
      unknown->first = field;
    }
    value = -1.0;
    return absl::OkStatus();
  }
  if (is_number) {
    return CsvReader::ErrorAt(field.position,
                              absl::StrFormat("\"%s\" in column \"%s\" is a number, but the rows "
                                              "above have texts, such as \"%s\"",
                                              field.text, column, kind.texts.begin()->first));
  }
  if (known == kind.texts.end()) {
    if (std::ssize(kind.texts) == kMaxCsvCategories) {
      return CsvReader::ErrorAt(
          field.position,
          absl::StrFormat("column \"%s\" has more than %d different texts, which "
                          "are too many for a feature each: leave it out with --drop",
                          column, kMaxCsvCategories));
    }
    if (!base::IsUtf8(field.text)) {
      return CsvReader::ErrorAt(field.position,
                                absl::StrFormat("the text in column \"%s\" is not UTF-8", column));
    }
    known = kind.texts.emplace(field.text, static_cast<int32_t>(kind.texts.size())).first;
  }
  value = known->second;
  return absl::OkStatus();
}

// Reads a label of the last row of the table, the number `index` of its labels.
absl::Status ReadLabel(const std::string& column, const CsvField& label, size_t index,
                       CsvTable& table) {
  if (label.text.empty()) {
    return CsvReader::ErrorAt(label.position,
                              absl::StrFormat("the label in column \"%s\" is empty", column));
  }
  if (table.kind == LabelKind::kNumbers) {
    double& number = table.numbers[table.numbers.size() - table.labels + index];
    return ParseNumber(label.text, number) ? absl::OkStatus() : NotANumber(column, label);
  }
  auto known = table.texts.find(label.text);
  if (known == table.texts.end()) {
    if (table.knows_texts) {
      return CsvReader::ErrorAt(
          label.position, absl::StrFormat("\"%s\" in column \"%s\" is none of the classes that "
                                          "the model was trained on",
                                          label.text, column));
    }
    if (!base::IsUtf8(label.text)) {
      return CsvReader::ErrorAt(label.position,
                                absl::StrFormat("the label in column \"%s\" is not UTF-8", column));
    }
    known = table.texts.emplace(label.text, static_cast<int32_t>(table.texts.size())).first;
  }
  table.classes.push_back(known->second);
  return absl::OkStatus();
}

absl::Status AppendRow(const CsvHeader& header, absl::Span<const CsvField> record,
                       CsvTable& table) {
  if (record.size() != header.columns.size()) {
    return CsvReader::ErrorAt(record[0].position,
                              absl::StrFormat("the row has %d fields, expected %d as in the header",
                                              record.size(), header.columns.size()));
  }
  const size_t first = table.values.size();
  table.values.resize(first + static_cast<size_t>(header.features));
  if (table.kind == LabelKind::kNumbers) table.numbers.resize(table.numbers.size() + table.labels);
  for (size_t i = 0; i < record.size(); ++i) {
    const auto [kind, index] = header.roles[i];
    if (kind == RoleKind::kLabel) {
      RETURN_IF_ERROR(ReadLabel(header.columns[i], record[i], index, table));
    } else if (kind == RoleKind::kFeature) {
      RETURN_IF_ERROR(ReadFeature(header.columns[i], record[i], table.columns[index],
                                  table.knows_texts ? &table.unknown : nullptr,
                                  table.values[first + index]));
    }
  }
  ++table.rows;
  return absl::OkStatus();
}

// Adds all rows that follow the header.
absl::Status ReadRows(CsvReader& reader, const CsvHeader& header, CsvTable& table) {
  table.features = header.features;
  table.labels = header.labels.size();
  table.columns.resize(static_cast<size_t>(header.features));
  std::vector<CsvField> record, blank;
  while (true) {
    ASSIGN_OR_RETURN(const bool found, reader.Next(record));
    if (!found) return absl::OkStatus();
    // Empty lines are ignored at the end, and errors before other lines.
    if (record.size() == 1 && record[0].text.empty()) {
      if (blank.empty()) blank = record;
      continue;
    }
    if (!blank.empty()) RETURN_IF_ERROR(AppendRow(header, blank, table));
    RETURN_IF_ERROR(AppendRow(header, record, table));
  }
}

// Reads a file, the rows of which follow those in the table; `first` is null for the first one.
absl::StatusOr<CsvHeader> ReadText(absl::string_view text, const CsvOptions& options,
                                   const DataEncoding* encoding, const CsvHeader* first,
                                   const std::string& first_file, CsvTable& table) {
  CsvReader reader(text);
  ASSIGN_OR_RETURN(std::vector<std::string> columns, ReadColumns(reader));
  CsvHeader header;
  if (encoding != nullptr) {
    ASSIGN_OR_RETURN(header, HeaderToPredict(std::move(columns), options, *encoding));
  } else if (first != nullptr) {
    ASSIGN_OR_RETURN(header, HeaderLike(*first, first_file, std::move(columns)));
  } else {
    ASSIGN_OR_RETURN(header, HeaderToTrain(std::move(columns), options));
  }
  if (first != nullptr && first->labels.empty() != header.labels.empty()) {
    return CsvReader::ErrorAt({}, absl::StrCat("the file has ", first->labels.empty() ? "" : "no ",
                                               "labels, unlike ", first_file));
  }
  RETURN_IF_ERROR(ReadRows(reader, header, table));
  return header;
}

}  // namespace

std::vector<std::string> LabelColumnsOf(absl::Span<const std::string> columns,
                                        const std::string& label_column) {
  if (Contains(columns, label_column)) return {label_column};
  return absl::StrSplit(label_column, ',');
}

absl::StatusOr<CsvHeader> ReadCsvFiles(absl::Span<const std::string> files,
                                       const CsvOptions& options, const DataEncoding* encoding,
                                       CsvTable& table) {
  std::optional<CsvHeader> first;
  for (size_t i = 0; i < files.size(); ++i) {
    ASSIGN_OR_RETURN(const std::string text, base::ReadInput(files[i], options.max_bytes));
    const int64_t unknown = table.unknown.count;
    absl::StatusOr<CsvHeader> header =
        ReadText(text, options, encoding, first.has_value() ? &*first : nullptr, files[0], table);
    RETURN_IF_ERROR(base::InFile(header.status(), files[i]));
    if (unknown == 0 && table.unknown.count > 0) table.unknown.file = i;
    if (!first.has_value()) first = *std::move(header);
  }
  return *std::move(first);
}

}  // namespace stagecoach::engine
