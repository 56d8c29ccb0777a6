#include "engine/data/formats/csv.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/charconv.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/csv_reader.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "base/text/nearest.h"
#include "engine/data/file_name.h"
#include "engine/data/formats/format.h"
#include "engine/data/number_statistics.h"
#include "engine/data/random_streams.h"

namespace stagecoach::engine {
namespace {

using base::CsvField;
using base::CsvReader;

// Roles of columns.
constexpr int kLabel = -1;
constexpr int kDropped = -2;

struct Header {
  std::vector<std::string> columns;
  std::vector<int> roles;  // by column: kLabel, kDropped, or its number among the features'
  int features = 0;
  bool has_labels = false;
};

// What is known about a column of features.
struct ColumnKind {
  bool is_known = false;
  bool is_text = false;
  std::map<std::string, int32_t> texts;  // a text's number, in order of appearance
};

// Texts that are none of those that a model was trained on.
struct UnknownTexts {
  int64_t count = 0;
  std::string column;  // of the first
  CsvField first;
};

struct Table {
  int64_t features = 0;
  int64_t rows = 0;
  std::vector<double> values;       // (rows, features); a text's number, or -1
  std::vector<ColumnKind> columns;  // by feature
  UnknownTexts unknown;
  LabelKind kind = LabelKind::kClasses;  // that of labels, if there are any
  std::vector<double> numbers;           // (rows), or
  std::vector<int32_t> labels;           // (rows), numbers of texts
  std::map<std::string, int32_t> texts;  // label text -> its number, in order of appearance
  bool knows_texts = false;              // others are errors
};

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

// All columns but that of the labels and those that are dropped are features.
absl::StatusOr<Header> HeaderToTrain(std::vector<std::string> columns, const CsvOptions& options) {
  RETURN_IF_ERROR(CheckHasColumn(columns, "label column", options.label_column));
  for (const std::string& dropped : options.dropped_columns) {
    RETURN_IF_ERROR(CheckHasColumn(columns, "column to drop,", dropped));
    if (dropped == options.label_column) {
      return CsvReader::ErrorAt({}, absl::StrFormat("the column \"%s\" is to be dropped, but has "
                                                    "the labels",
                                                    dropped));
    }
  }
  Header header = {.columns = std::move(columns)};
  header.has_labels = true;
  for (const std::string& column : header.columns) {
    const bool is_dropped = Contains(options.dropped_columns, column);
    header.roles.push_back(column == options.label_column ? kLabel
                           : is_dropped                   ? kDropped
                                                          : header.features++);
  }
  if (header.features == 0) {
    return CsvReader::ErrorAt(
        {}, "there is no column beside the labels, expected at least one feature");
  }
  return header;
}

// The columns of the encoding are features, in any order; that of the labels may be missing.
absl::StatusOr<Header> HeaderToPredict(std::vector<std::string> columns, const CsvOptions& options,
                                       const DataEncoding& encoding) {
  std::map<std::string, int> features;
  for (const std::string& column : encoding.columns) {
    features.emplace(column, static_cast<int>(features.size()));
  }
  Header header = {.columns = std::move(columns),
                   .features = static_cast<int>(encoding.columns.size())};
  for (const std::string& column : header.columns) {
    const auto feature = features.find(column);
    const bool is_dropped =
        Contains(options.dropped_columns, column) || Contains(encoding.dropped_columns, column);
    if (feature == features.end() && column != options.label_column && is_dropped) {
      header.roles.push_back(kDropped);
      continue;
    }
    if (feature == features.end() && column != options.label_column) {
      return CsvReader::ErrorAt(
          {}, absl::StrFormat("the model was not trained on a column \"%s\", but on %s", column,
                              ListColumns(encoding.columns)));
    }
    const bool is_label = feature == features.end();
    header.roles.push_back(is_label ? kLabel : feature->second);
    header.has_labels = header.has_labels || is_label;
    if (!is_label) features.erase(feature);
  }
  if (features.empty()) return header;
  return CsvReader::ErrorAt({},
                            absl::StrFormat("no column \"%s\", which the model was trained on; the "
                                            "columns are %s",
                                            features.begin()->first, ListColumns(header.columns)));
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
absl::Status ReadFeature(const std::string& column, const CsvField& field, ColumnKind& kind,
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

absl::Status AppendLabel(const std::string& column, const CsvField& label, Table& table) {
  if (label.text.empty()) {
    return CsvReader::ErrorAt(label.position,
                              absl::StrFormat("the label in column \"%s\" is empty", column));
  }
  if (table.kind == LabelKind::kNumbers) {
    if (ParseNumber(label.text, table.numbers.emplace_back())) return absl::OkStatus();
    return NotANumber(column, label);
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
  table.labels.push_back(known->second);
  return absl::OkStatus();
}

absl::Status AppendRow(const Header& header, absl::Span<const CsvField> record, Table& table) {
  if (record.size() != header.columns.size()) {
    return CsvReader::ErrorAt(record[0].position,
                              absl::StrFormat("the row has %d fields, expected %d as in the header",
                                              record.size(), header.columns.size()));
  }
  const size_t first = table.values.size();
  table.values.resize(first + static_cast<size_t>(header.features));
  for (size_t i = 0; i < record.size(); ++i) {
    const int role = header.roles[i];
    if (role == kLabel) {
      RETURN_IF_ERROR(AppendLabel(header.columns[i], record[i], table));
      continue;
    }
    if (role == kDropped) continue;
    const auto feature = static_cast<size_t>(role);
    RETURN_IF_ERROR(ReadFeature(header.columns[i], record[i], table.columns[feature],
                                table.knows_texts ? &table.unknown : nullptr,
                                table.values[first + feature]));
  }
  ++table.rows;
  return absl::OkStatus();
}

// Adds all rows that follow the header.
absl::Status ReadRows(CsvReader& reader, const Header& header, Table& table) {
  table.features = header.features;
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

absl::Status CheckTrains(const CsvOptions& options, const Table& table) {
  if (table.rows < 2) {
    return base::DataError(
        absl::StrFormat("rows after the header: %d, expected at least 2%s", table.rows,
                        options.sets == Sets::kBoth ? ", one to train and one to test" : ""));
  }
  if (table.kind == LabelKind::kNumbers) return absl::OkStatus();
  if (table.texts.size() < 2) {
    return base::DataError(
        absl::StrFormat("fewer than 2 classes: every label in column \"%s\" is \"%s\"",
                        options.label_column, table.texts.begin()->first));
  }
  // Whole numbers may be codes of classes.
  double value = 0.0;
  const auto is_number = [&](const auto& text) { return absl::SimpleAtod(text.first, &value); };
  const auto is_whole = [&](const auto& text) {
    return absl::SimpleAtod(text.first, &value) && value == std::floor(value);
  };
  if (std::all_of(table.texts.begin(), table.texts.end(), is_number) &&
      !std::all_of(table.texts.begin(), table.texts.end(), is_whole)) {
    return base::DataError(absl::StrFormat(
        "the labels in column \"%s\" are numbers that are not whole, such as \"%s\", but expected "
        "classes: numbers are predicted with --loss mse (in C++, LabelKind::kNumbers)",
        options.label_column,
        std::find_if_not(table.texts.begin(), table.texts.end(), is_whole)->first));
  }
  return absl::OkStatus();
}

// Returns the classes in order; none if they are 0, 1, 2, ...
std::vector<std::string> NamesOfClasses(const std::map<std::string, int32_t>& texts) {
  bool are_numbers = true;
  std::vector<std::string> names;
  for (const auto& [text, number] : texts) {
    are_numbers = are_numbers && texts.contains(absl::StrCat(names.size()));
    names.push_back(text);
  }
  return are_numbers ? std::vector<std::string>() : names;
}

// Returns the class of each label text, by the text's number.
std::vector<int32_t> ClassOfText(const std::map<std::string, int32_t>& texts,
                                 const DataEncoding& encoding) {
  std::vector<int32_t> class_of(texts.size());
  for (int32_t label = 0; label < static_cast<int32_t>(texts.size()); ++label) {
    class_of[static_cast<size_t>(texts.at(encoding.NameOf(label)))] = label;
  }
  return class_of;
}

// Chooses, for each row, whether it is held out for the test set.
std::vector<bool> ChooseTestRows(int64_t rows, const CsvOptions& options) {
  std::vector<bool> is_test(rows, false);
  if (options.sets == Sets::kTraining) return is_test;
  const int64_t wanted = std::llround(static_cast<double>(rows) * options.test_fraction);
  const int64_t test_rows = std::clamp<int64_t>(wanted, 1, rows - 1);
  const std::vector<int64_t> order =
      base::Permutation(options.seed, StreamId(DataStream::kCsvHoldOut), rows);
  for (int64_t i = 0; i < test_rows; ++i) is_test[order[i]] = true;
  return is_test;
}

// Returns the texts of a column that training rows have, sorted.
std::vector<std::string> TextsOf(const Table& table, const std::vector<bool>& is_test,
                                 int64_t feature) {
  std::set<int32_t> trained;
  for (int64_t row = 0; row < table.rows; ++row) {
    if (is_test[row]) continue;
    trained.insert(static_cast<int32_t>(table.values[row * table.features + feature]));
  }
  std::vector<std::string> texts;
  for (const auto& [text, number] : table.columns[static_cast<size_t>(feature)].texts) {
    if (trained.contains(number)) texts.push_back(text);
  }
  return texts;
}

// Replaces each column of texts by a feature for each of its categories.
void ExpandTexts(const DataEncoding& encoding, Table& table) {
  if (encoding.categories.empty()) return;
  const auto old_features = static_cast<size_t>(table.features);
  std::vector<size_t> first;  // the first feature of each column
  // Of each column, the category of each of its texts' numbers; -1: none.
  std::vector<std::vector<int64_t>> category_of(old_features);
  size_t features = 0;
  for (size_t column = 0; column < old_features; ++column) {
    const std::vector<std::string>& categories = encoding.categories[column];
    const std::map<std::string, int32_t>& texts = table.columns[column].texts;
    first.push_back(features);
    features += std::max<size_t>(1, categories.size());
    category_of[column].assign(texts.size(), -1);
    for (size_t i = 0; i < categories.size(); ++i) {
      category_of[column][static_cast<size_t>(texts.at(categories[i]))] = static_cast<int64_t>(i);
    }
  }
  std::vector<double> values(static_cast<size_t>(table.rows) * features);
  for (size_t row = 0; row < static_cast<size_t>(table.rows); ++row) {
    for (size_t column = 0; column < old_features; ++column) {
      const double value = table.values[row * old_features + column];
      double* const place = &values[row * features + first[column]];
      if (encoding.categories[column].empty()) {
        *place = value;
        continue;
      }
      const int64_t category = value < 0 ? -1 : category_of[column][static_cast<size_t>(value)];
      if (category >= 0) place[category] = 1.0;
    }
  }
  table.values = std::move(values);
  table.features = static_cast<int64_t>(features);
}

// Returns, for each feature, whether it is that of a text; none if all are numbers.
std::vector<bool> AreTexts(const DataEncoding& encoding) {
  std::vector<bool> are_texts;
  for (const std::vector<std::string>& categories : encoding.categories) {
    are_texts.insert(are_texts.end(), std::max<size_t>(1, categories.size()), !categories.empty());
  }
  return are_texts;
}

// Measures the statistics by which the features and, if they are numbers, the labels are
// standardized, on the training rows.
void Measure(const Table& table, const std::vector<bool>& is_test, DataEncoding& encoding) {
  std::vector<double> values;
  const auto measure = [&](auto value_of_row) {
    values.clear();
    for (int64_t row = 0; row < table.rows; ++row) {
      if (!is_test[row]) values.push_back(value_of_row(row));
    }
    return MeasureNumbers(values);
  };
  const std::vector<bool> are_texts = AreTexts(encoding);
  for (int64_t f = 0; f < table.features; ++f) {
    const bool is_text = !are_texts.empty() && are_texts[static_cast<size_t>(f)];
    const NumberStatistics statistics =
        is_text ? NumberStatistics{.mean = 0.0, .stddev = 1.0}
                : measure([&](int64_t row) { return table.values[row * table.features + f]; });
    encoding.mean.push_back(statistics.mean);
    encoding.stddev.push_back(statistics.stddev);
  }
  if (table.kind == LabelKind::kClasses) return;
  const NumberStatistics statistics = measure([&](int64_t row) { return table.numbers[row]; });
  encoding.label_mean = statistics.mean;
  encoding.label_stddev = statistics.stddev;
}

// Returns the encoded values of the rows that `takes` accepts.
template <typename Takes>
std::vector<float> Encode(const Table& table, const DataEncoding& encoding, Takes takes) {
  std::vector<double> scale;
  for (const double stddev : encoding.stddev) scale.push_back(stddev > 0 ? 1 / stddev : 0);
  std::vector<float> values;
  for (int64_t row = 0; row < table.rows; ++row) {
    if (!takes(row)) continue;
    for (int64_t f = 0; f < table.features; ++f) {
      const auto feature = static_cast<size_t>(f);
      const double value = table.values[row * table.features + f];
      values.push_back(static_cast<float>((value - encoding.mean[feature]) * scale[feature]));
    }
  }
  return values;
}

// Makes a set of the rows that `takes` accepts, with their labels, if there are any. `class_of`:
// ClassOfText's.
template <typename Takes>
absl::StatusOr<std::shared_ptr<const Dataset>> MakeSet(const Table& table,
                                                       const DataEncoding& encoding,
                                                       const std::vector<int32_t>& class_of,
                                                       Takes takes) {
  std::vector<int32_t> labels;
  std::vector<float> numbers;
  for (int64_t row = 0; row < table.rows; ++row) {
    if (!takes(row)) continue;
    if (!table.labels.empty()) labels.push_back(class_of[table.labels[row]]);
    if (!table.numbers.empty()) {
      numbers.push_back(static_cast<float>(encoding.Standardized(table.numbers[row])));
    }
  }
  const int64_t classes = labels.empty() ? 0 : std::ssize(class_of);
  ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> samples,
                   TableDataset::Create({table.features}, classes, Encode(table, encoding, takes),
                                        std::move(labels)));
  if (numbers.empty()) return samples;
  return LabeledByNumbers(std::move(samples), std::move(numbers));
}

absl::StatusOr<TrainTest> ParseToTrain(absl::string_view text, const CsvOptions& options) {
  CsvReader reader(text);
  ASSIGN_OR_RETURN(std::vector<std::string> columns, ReadColumns(reader));
  ASSIGN_OR_RETURN(const Header header, HeaderToTrain(std::move(columns), options));
  Table table = {.kind = options.labels};
  RETURN_IF_ERROR(ReadRows(reader, header, table));
  RETURN_IF_ERROR(CheckTrains(options, table));
  const std::vector<bool> is_test = ChooseTestRows(table.rows, options);
  TrainTest data;
  data.encoding.class_names = NamesOfClasses(table.texts);
  for (size_t i = 0; i < header.columns.size(); ++i) {
    if (header.roles[i] >= 0) data.encoding.columns.push_back(header.columns[i]);
  }
  data.encoding.dropped_columns = options.dropped_columns;
  const auto is_text = [](const ColumnKind& column) { return column.is_text; };
  if (std::any_of(table.columns.begin(), table.columns.end(), is_text)) {
    for (int64_t f = 0; f < header.features; ++f) {
      data.encoding.categories.push_back(TextsOf(table, is_test, f));
    }
    ExpandTexts(data.encoding, table);
  }
  Measure(table, is_test, data.encoding);
  if (table.kind == LabelKind::kNumbers) {
    RETURN_IF_ERROR(
        CheckLabelsDiffer(absl::StrFormat("column \"%s\"", options.label_column), data.encoding));
  }

  const std::vector<int32_t> class_of = ClassOfText(table.texts, data.encoding);
  const auto create = [&](bool test) {
    return MakeSet(table, data.encoding, class_of,
                   [&](int64_t row) { return is_test[row] == test; });
  };
  auto train = create(false);
  RETURN_IF_ERROR(base::Annotate(train.status(), "training set"));
  data.train = *std::move(train);
  if (options.sets == Sets::kTraining) return data;
  auto test = create(true);
  RETURN_IF_ERROR(base::Annotate(test.status(), "test set"));
  data.test = *std::move(test);
  return data;
}

absl::StatusOr<std::shared_ptr<const Dataset>> ParseToPredict(absl::string_view text,
                                                              const CsvOptions& options,
                                                              const DataEncoding& encoding,
                                                              int64_t classes) {
  CsvReader reader(text);
  ASSIGN_OR_RETURN(std::vector<std::string> columns, ReadColumns(reader));
  ASSIGN_OR_RETURN(const Header header, HeaderToPredict(std::move(columns), options, encoding));
  Table table = {.kind = encoding.labels_are_numbers() ? LabelKind::kNumbers : LabelKind::kClasses,
                 .knows_texts = true};
  for (const std::vector<std::string>& texts : encoding.categories) {
    ColumnKind& column = table.columns.emplace_back();
    column.is_known = true;
    column.is_text = !texts.empty();
    for (const std::string& known : texts) {
      column.texts.emplace(known, static_cast<int32_t>(column.texts.size()));
    }
  }
  std::vector<int32_t> class_of;  // each text has the number of its class
  for (int32_t label = 0; header.has_labels && label < classes; ++label) {
    table.texts.emplace(encoding.NameOf(label), label);
    class_of.push_back(label);
  }
  RETURN_IF_ERROR(ReadRows(reader, header, table));
  if (table.unknown.count > 0 && options.on_notice != nullptr) {
    const CsvField& first = table.unknown.first;
    options.on_notice(absl::StrFormat(
        "%d field%s none of the texts that the model was trained on, and so 0: \"%s\" in column "
        "\"%s\" of line %d%s",
        table.unknown.count, table.unknown.count == 1 ? " has" : "s have", first.text,
        table.unknown.column, first.position.line, table.unknown.count == 1 ? "" : ", ..."));
  }
  ExpandTexts(encoding, table);
  return MakeSet(table, encoding, class_of, [](int64_t) { return true; });
}

}  // namespace

absl::StatusOr<TrainTest> LoadCsv(const std::string& path, const CsvOptions& options) {
  if (!(options.test_fraction > 0 && options.test_fraction < 1)) {
    return base::DataError(
        absl::StrFormat("test fraction %g, expected a number between 0 and 1, both excluded",
                        options.test_fraction));
  }
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, options.max_bytes));
  absl::StatusOr<TrainTest> data = ParseToTrain(text, options);
  if (!data.ok()) return base::InFile(data.status(), path);
  return data;
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadCsvSamples(const std::string& path,
                                                              const CsvOptions& options,
                                                              const DataEncoding& encoding,
                                                              int64_t classes) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadInput(path, options.max_bytes));
  absl::StatusOr<std::shared_ptr<const Dataset>> samples =
      ParseToPredict(text, options, encoding, classes);
  if (!samples.ok()) return base::InFile(samples.status(), path);
  return samples;
}

const DataFormat kCsvFormat = {
    .name = "csv",
    .form = "a .csv file",
    .matches = [](const DataSource& source) { return HasEnding(source.spec, ".csv"); },
    .load =
        [](const DataSource& source, Sets sets) {
          return LoadCsv(source.spec,
                         {.label_column = source.label_column,
                          .dropped_columns = source.dropped_columns,
                          .labels = source.labels,
                          .sets = sets,
                          .test_fraction = source.test_fraction.value_or(kDefaultCsvTestFraction),
                          .seed = source.seed});
        },
    .load_samples = [](const DataSource& source, const DataEncoding& encoding,
                       int64_t classes) -> absl::StatusOr<std::shared_ptr<const Dataset>> {
      RETURN_IF_ERROR(CheckEncodes(!encoding.columns.empty(), "a table",
                                   "it is not known which columns to feed it with"));
      return LoadCsvSamples(source.spec,
                            {.label_column = source.label_column,
                             .dropped_columns = source.dropped_columns,
                             .on_notice = source.on_notice},
                            encoding, classes);
    },
    .has_numbers = true,
    .has_label_column = true,
    .test_fraction = kDefaultCsvTestFraction,
};

}  // namespace stagecoach::engine
