#include "engine/data/formats/csv.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "base/text/line.h"
#include "engine/data/data_files.h"
#include "engine/data/file_name.h"
#include "engine/data/formats/csv_table.h"
#include "engine/data/formats/format.h"
#include "engine/data/number_statistics.h"
#include "engine/data/random_streams.h"

namespace stagecoach::engine {
namespace {

absl::Status CheckTrains(const CsvHeader& header, const CsvOptions& options,
                         const CsvTable& table) {
  if (table.rows < 2) {
    return base::DataError(
        absl::StrFormat("rows after the header: %d, expected at least 2%s", table.rows,
                        options.sets == Sets::kBoth ? ", one to train and one to test" : ""));
  }
  if (table.kind == LabelKind::kNumbers) return absl::OkStatus();
  if (table.texts.size() < 2) {
    return base::DataError(
        absl::StrFormat("fewer than 2 classes: every label in column \"%s\" is \"%s\"",
                        header.labels.front(), table.texts.begin()->first));
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
        header.labels.front(),
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
std::vector<std::string> TextsOf(const CsvTable& table, const std::vector<bool>& is_test,
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
void ExpandTexts(const DataEncoding& encoding, CsvTable& table) {
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
// standardized, on the training rows. InvalidArgument: all labels of a column are one number.
absl::Status Measure(const CsvHeader& header, const CsvTable& table,
                     const std::vector<bool>& is_test, DataEncoding& encoding) {
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
  if (table.kind == LabelKind::kClasses) return absl::OkStatus();
  for (size_t i = 0; i < table.labels; ++i) {
    const NumberStatistics statistics = measure(
        [&](int64_t row) { return table.numbers[static_cast<size_t>(row) * table.labels + i]; });
    RETURN_IF_ERROR(
        CheckLabelsDiffer(absl::StrFormat("column \"%s\"", header.labels[i]), statistics));
    encoding.label_mean.push_back(statistics.mean);
    encoding.label_stddev.push_back(statistics.stddev);
  }
  if (table.labels > 1) encoding.label_names = header.labels;
  return absl::OkStatus();
}

// Returns the encoded values of the rows that `takes` accepts.
template <typename Takes>
std::vector<float> Encode(const CsvTable& table, const DataEncoding& encoding, Takes takes) {
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
absl::StatusOr<std::shared_ptr<const Dataset>> MakeSet(const CsvTable& table,
                                                       const DataEncoding& encoding,
                                                       const std::vector<int32_t>& class_of,
                                                       Takes takes) {
  std::vector<int32_t> labels;
  std::vector<float> numbers;
  for (int64_t row = 0; row < table.rows; ++row) {
    if (!takes(row)) continue;
    if (!table.classes.empty()) labels.push_back(class_of[table.classes[row]]);
    for (size_t i = 0; !table.numbers.empty() && i < table.labels; ++i) {
      const double number = table.numbers[static_cast<size_t>(row) * table.labels + i];
      numbers.push_back(static_cast<float>(encoding.Standardized(number, i)));
    }
  }
  const int64_t classes = labels.empty() ? 0 : std::ssize(class_of);
  ASSIGN_OR_RETURN(std::shared_ptr<const Dataset> samples,
                   TableDataset::Create({table.features}, classes, Encode(table, encoding, takes),
                                        std::move(labels)));
  if (numbers.empty()) return samples;
  return LabeledByNumbers(std::move(samples), std::move(numbers),
                          static_cast<int64_t>(table.labels));
}

absl::StatusOr<TrainTest> MakeSetsToTrain(const CsvHeader& header, const CsvOptions& options,
                                          CsvTable table) {
  RETURN_IF_ERROR(CheckTrains(header, options, table));
  const std::vector<bool> is_test = ChooseTestRows(table.rows, options);
  TrainTest data;
  data.encoding.class_names = NamesOfClasses(table.texts);
  for (size_t i = 0; i < header.columns.size(); ++i) {
    if (header.roles[i].kind == CsvRole::Kind::kFeature) {
      data.encoding.columns.push_back(header.columns[i]);
    }
  }
  data.encoding.dropped_columns = options.dropped_columns;
  const auto is_text = [](const CsvColumn& column) { return column.is_text; };
  if (std::any_of(table.columns.begin(), table.columns.end(), is_text)) {
    for (int64_t f = 0; f < header.features; ++f) {
      data.encoding.categories.push_back(TextsOf(table, is_test, f));
    }
    ExpandTexts(data.encoding, table);
  }
  RETURN_IF_ERROR(Measure(header, table, is_test, data.encoding));

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

// Returns a table that knows the texts and classes of the encoding.
CsvTable TableToPredict(const DataEncoding& encoding, int64_t classes) {
  CsvTable table = {
      .kind = encoding.labels_are_numbers() ? LabelKind::kNumbers : LabelKind::kClasses,
      .knows_texts = true};
  for (size_t i = 0; i < encoding.columns.size(); ++i) {
    CsvColumn& column = table.columns.emplace_back();
    column.is_known = true;
    if (encoding.categories.empty()) continue;  // all are numbers
    column.is_text = !encoding.categories[i].empty();
    for (const std::string& known : encoding.categories[i]) {
      column.texts.emplace(known, static_cast<int32_t>(column.texts.size()));
    }
  }
  for (int32_t label = 0; label < classes; ++label) {
    table.texts.emplace(encoding.NameOf(label), label);
  }
  return table;
}

void TellUnknown(const UnknownTexts& unknown, absl::Span<const std::string> files,
                 const CsvOptions& options) {
  if (unknown.count == 0 || options.on_notice == nullptr) return;
  options.on_notice(absl::StrFormat(
      "%d field%s none of the texts that the model was trained on, and so 0: \"%s\" in column "
      "\"%s\" of line %d%s%s",
      unknown.count, unknown.count == 1 ? " has" : "s have", unknown.first.text, unknown.column,
      unknown.first.position.line,
      files.size() > 1 ? absl::StrCat(" of ", files[unknown.file]) : "",
      unknown.count == 1 ? "" : ", ..."));
}

}  // namespace

absl::StatusOr<TrainTest> LoadCsv(const std::string& path, const CsvOptions& options) {
  if (!(options.test_fraction > 0 && options.test_fraction < 1)) {
    return base::DataError(
        absl::StrFormat("test fraction %g, expected a number between 0 and 1, both excluded",
                        options.test_fraction));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> files, DataFilesOf(path));
  CsvTable table = {.kind = options.labels};
  ASSIGN_OR_RETURN(const CsvHeader header, ReadCsvFiles(files, options, nullptr, table));
  absl::StatusOr<TrainTest> data = MakeSetsToTrain(header, options, std::move(table));
  if (!data.ok()) return base::InFile(data.status(), path);
  return data;
}

absl::StatusOr<std::shared_ptr<const Dataset>> LoadCsvSamples(const std::string& path,
                                                              const CsvOptions& options,
                                                              const DataEncoding& encoding,
                                                              int64_t classes) {
  ASSIGN_OR_RETURN(const std::vector<std::string> files, DataFilesOf(path));
  CsvTable table = TableToPredict(encoding, classes);
  RETURN_IF_ERROR(ReadCsvFiles(files, options, &encoding, table).status());
  TellUnknown(table.unknown, files, options);
  ExpandTexts(encoding, table);
  // Each text of a class has its number.
  std::vector<int32_t> class_of(static_cast<size_t>(classes));
  std::iota(class_of.begin(), class_of.end(), 0);
  auto samples = MakeSet(table, encoding, class_of, [](int64_t) { return true; });
  if (!samples.ok()) return base::InFile(samples.status(), path);
  return samples;
}

const DataFormat kCsvFormat = {
    .name = "csv",
    .form = "a .csv file",
    .matches =
        [](const DataSource& source) { return HasEnding(FirstDataFile(source.spec), ".csv"); },
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
    .takes_files = true,
    .test_fraction = kDefaultCsvTestFraction,
};

}  // namespace stagecoach::engine
