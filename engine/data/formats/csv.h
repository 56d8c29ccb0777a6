#ifndef STAGECOACH_ENGINE_DATA_FORMATS_CSV_H_
#define STAGECOACH_ENGINE_DATA_FORMATS_CSV_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"

namespace stagecoach::engine {

inline constexpr double kDefaultCsvTestFraction = 0.2;

struct CsvOptions {
  // The column of the labels; or several, with commas between them, if they are numbers and no
  // column has the whole name.
  std::string label_column = "label";
  std::vector<std::string> dropped_columns;  // which are not read, besides those of the encoding
  LabelKind labels = LabelKind::kClasses;
  Sets sets = Sets::kBoth;
  // The share of the rows held out for the test set, in (0, 1). Rounded to whole rows; both sets
  // get at least one.
  double test_fraction = kDefaultCsvTestFraction;
  uint64_t seed = 0;  // chooses which rows are held out
  int64_t max_bytes = int64_t{2} << 30;
  std::function<void(const std::string&)> on_notice = {};  // told of unknown texts
};

// The most different texts that a column may have.
inline constexpr int64_t kMaxCsvCategories = 64;

// Reads a table of numbers and texts with a column of labels; it may be compressed (gzip). If
// `path` names several files (DataFilesOf), their rows follow each other, as if they were one; each
// has a header of its own, with the same columns in any order. The text is split as
// base/text/csv_reader.h says. The first record names the columns, each
// differently. Every column is a feature, in the order of the file, except for labels and
// columns that are dropped. Each field of a column is a decimal number without spaces, of magnitude
// below 3.4e38; or each is a text, of which a column has at most kMaxCsvCategories. No field is
// empty.
//
// A column of texts becomes a feature for each text that the training rows have, sorted by bytes: 1
// in rows with that text, and 0 in others, also if theirs is new.
//
// Labels: if the distinct labels are exactly the integers 0, 1, ..., n-1, written plainly, label k
// is class k. Otherwise each distinct text is a class, numbered from 0 in the order of its bytes.
// There must be at least two classes, and they must not all be numbers of which some have
// fractions.
//
// With LabelKind::kNumbers each label is a number like those of features, and not all of a column
// are equal; the targets are standardized by the training rows (DataEncoding::label_mean). With
// several columns of labels, the target of a row is as many numbers, in the order of their names.
//
// Both sets keep the order of the file. Every number is standardized by its mean and standard
// deviation over the training rows; a feature that is constant there reads as 0 everywhere.
//
// Errors are those of DataFilesOf, NotFound for a missing file, ResourceExhausted for one above
// `max_bytes`, otherwise InvalidArgument. Errors in the text name file, line and column. Names and
// labels are UTF-8.
absl::StatusOr<TrainTest> LoadCsv(const std::string& path, const CsvOptions& options);

// Loads all rows of a table or several, for a model that was trained on one with this encoding. The
// columns may come in another order, and those that were dropped may be there or not; the labels,
// of which there are `classes` unless the encoding says that they are numbers, may be missing (all
// of them), and then the set has no targets. Only label_column and max_bytes are read from
// `options`. Pre-condition: the encoding has columns. Errors: those of LoadCsv; a missing or an
// extra column; an unknown label.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadCsvSamples(const std::string& path,
                                                              const CsvOptions& options,
                                                              const DataEncoding& encoding,
                                                              int64_t classes);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FORMATS_CSV_H_
