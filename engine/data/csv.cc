#include "engine/data/csv.h"

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
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/file.h"
#include "base/nearest.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/data/csv_reader.h"
#include "engine/data/random_streams.h"

namespace stagecoach::engine {
namespace {

struct Header {
  std::vector<std::string> columns;
  size_t label_index = 0;
};

struct Table {
  int64_t features = 0;
  std::vector<double> values;            // (rows, features)
  std::vector<int32_t> labels;           // (rows); numbers of texts
  std::map<std::string, int32_t> texts;  // label text -> its number, in order of appearance
};

std::string ListColumns(absl::Span<const std::string> columns) {
  constexpr size_t kMostListed = 20;
  std::string list = absl::StrJoin(columns.subspan(0, kMostListed), ", ");
  if (columns.size() > kMostListed) {
    absl::StrAppend(&list, " and ", columns.size() - kMostListed, " more");
  }
  return list;
}

absl::StatusOr<Header> ReadHeader(CsvReader& reader, const std::string& label_column) {
  std::vector<CsvField> record;
  ASSIGN_OR_RETURN(const bool found, reader.Next(record));
  if (!found) {
    return reader.ErrorAt({}, "the file is empty, expected a header row that names the columns");
  }
  Header header;
  std::set<std::string> seen;
  for (const CsvField& field : record) {
    if (!seen.insert(field.text).second) {
      return reader.ErrorAt(field.position,
                            absl::StrFormat("a second column is named \"%s\", expected each name "
                                            "once",
                                            field.text));
    }
    header.columns.push_back(field.text);
  }
  const auto label = std::find(header.columns.begin(), header.columns.end(), label_column);
  if (label == header.columns.end()) {
    std::string message = absl::StrFormat("no label column \"%s\"; the columns are %s",
                                          label_column, ListColumns(header.columns));
    const std::string nearest = base::Nearest(label_column, header.columns);
    if (!nearest.empty()) absl::StrAppend(&message, "; did you mean \"", nearest, "\"?");
    return reader.ErrorAt({}, message);
  }
  if (header.columns.size() == 1) {
    return reader.ErrorAt({},
                          "there is no column beside the labels, expected at least one feature");
  }
  header.label_index = static_cast<size_t>(label - header.columns.begin());
  return header;
}

// Whether all of `text` is a number that a float can hold. Too small a number reads as 0.
bool ParseNumber(const std::string& text, double& value) {
  // absl::from_chars reads more than decimal numbers, such as 0x10 and inf.
  if (text.find_first_not_of("+-.0123456789eE") != std::string::npos) return false;
  const char* end = text.data() + text.size();
  const absl::from_chars_result result = absl::from_chars(text.data(), end, value);
  if (result.ptr != end || result.ec == std::errc::invalid_argument) return false;
  // On overflow `value` is the largest double.
  return std::abs(value) <= std::numeric_limits<float>::max();
}

absl::Status AppendRow(const CsvReader& reader, const Header& header,
                       absl::Span<const CsvField> record, Table& table) {
  if (record.size() != header.columns.size()) {
    return reader.ErrorAt(record[0].position,
                          absl::StrFormat("the row has %d fields, expected %d as in the header",
                                          record.size(), header.columns.size()));
  }
  for (size_t i = 0; i < record.size(); ++i) {
    if (i == header.label_index) continue;
    double value = 0;
    if (!ParseNumber(record[i].text, value)) {
      return reader.ErrorAt(record[i].position,
                            absl::StrFormat("\"%s\" in column \"%s\" is not a finite number",
                                            record[i].text, header.columns[i]));
    }
    table.values.push_back(value);
  }
  const CsvField& label = record[header.label_index];
  if (label.text.empty()) {
    return reader.ErrorAt(label.position, absl::StrFormat("the label in column \"%s\" is empty",
                                                          header.columns[header.label_index]));
  }
  const int32_t next = static_cast<int32_t>(table.texts.size());
  table.labels.push_back(table.texts.try_emplace(label.text, next).first->second);
  return absl::OkStatus();
}

absl::StatusOr<Table> ReadTable(const std::string& path, const CsvOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, base::ReadFile(path, options.max_bytes));
  CsvReader reader(text, path);
  ASSIGN_OR_RETURN(const Header header, ReadHeader(reader, options.label_column));
  Table table;
  table.features = static_cast<int64_t>(header.columns.size()) - 1;
  std::vector<CsvField> record;
  while (true) {
    ASSIGN_OR_RETURN(const bool found, reader.Next(record));
    if (!found) break;
    RETURN_IF_ERROR(AppendRow(reader, header, record, table));
  }
  if (table.labels.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: rows after the header: %d, expected at least 2, one to train and one "
                        "to test",
                        path, table.labels.size()));
  }
  if (table.texts.size() < 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: fewer than 2 classes: every label in column \"%s\" is \"%s\"", path,
                        options.label_column, table.texts.begin()->first));
  }
  return table;
}

// The class of each label text, by the text's number.
std::vector<int32_t> ClassOfText(const std::map<std::string, int32_t>& texts) {
  const int32_t classes = static_cast<int32_t>(texts.size());
  std::vector<int32_t> class_of(texts.size());
  int32_t integers = 0;
  for (auto it = texts.end(); integers < classes; ++integers) {
    it = texts.find(absl::StrCat(integers));
    if (it == texts.end()) break;
    class_of[it->second] = integers;
  }
  if (integers == classes) return class_of;
  int32_t position = 0;
  for (const auto& [text, number] : texts) class_of[number] = position++;
  return class_of;
}

// Whether each row is held out for the test set.
std::vector<bool> ChooseTestRows(int64_t rows, const CsvOptions& options) {
  const int64_t wanted = std::llround(static_cast<double>(rows) * options.test_fraction);
  const int64_t test_rows = std::clamp<int64_t>(wanted, 1, rows - 1);
  const std::vector<int64_t> order =
      base::Permutation(options.seed, StreamId(DataStream::kCsvHoldOut), rows);
  std::vector<bool> is_test(rows, false);
  for (int64_t i = 0; i < test_rows; ++i) is_test[order[i]] = true;
  return is_test;
}

// Subtracts from each feature its mean over the training rows and divides by its standard deviation
// there.
void Standardize(Table& table, const std::vector<bool>& is_test) {
  const int64_t rows = static_cast<int64_t>(table.labels.size());
  const double train_rows = static_cast<double>(std::count(is_test.begin(), is_test.end(), false));
  for (int64_t f = 0; f < table.features; ++f) {
    const auto value = [&](int64_t row) -> double& {
      return table.values[row * table.features + f];
    };
    double mean = 0;
    double lowest = std::numeric_limits<double>::infinity();
    double highest = -lowest;
    for (int64_t row = 0; row < rows; ++row) {
      if (is_test[row]) continue;
      mean += value(row) / train_rows;
      lowest = std::min(lowest, value(row));
      highest = std::max(highest, value(row));
    }
    double variance = 0;
    for (int64_t row = 0; row < rows; ++row) {
      if (!is_test[row]) variance += std::pow(value(row) - mean, 2) / train_rows;
    }
    // Rounding in the mean gives a constant feature a small variance, so constancy is tested apart.
    const double scale = lowest < highest && variance > 0 ? 1 / std::sqrt(variance) : 0;
    for (int64_t row = 0; row < rows; ++row) value(row) = (value(row) - mean) * scale;
  }
}

}  // namespace

absl::StatusOr<TrainTest> LoadCsv(const std::string& path, const CsvOptions& options) {
  if (!(options.test_fraction > 0 && options.test_fraction < 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("test fraction %g, expected a number between 0 and 1, both excluded",
                        options.test_fraction));
  }
  ASSIGN_OR_RETURN(Table table, ReadTable(path, options));
  const int64_t rows = static_cast<int64_t>(table.labels.size());
  const std::vector<bool> is_test = ChooseTestRows(rows, options);
  Standardize(table, is_test);

  const std::vector<int32_t> class_of = ClassOfText(table.texts);
  const auto create = [&](bool test) {
    std::vector<float> values;
    std::vector<int32_t> labels;
    for (int64_t row = 0; row < rows; ++row) {
      if (is_test[row] != test) continue;
      labels.push_back(class_of[table.labels[row]]);
      const auto first = table.values.begin() + row * table.features;
      values.insert(values.end(), first, first + table.features);
    }
    const int64_t classes = static_cast<int64_t>(class_of.size());
    return TableDataset::Create(table.features, classes, std::move(values), std::move(labels));
  };
  auto train = create(false);
  RETURN_IF_ERROR(base::Annotate(train.status(), absl::StrCat(path, ": training set")));
  auto test = create(true);
  RETURN_IF_ERROR(base::Annotate(test.status(), absl::StrCat(path, ": test set")));
  return TrainTest{*std::move(train), *std::move(test)};
}

}  // namespace stagecoach::engine
