#ifndef STAGECOACH_ENGINE_DATA_FORMATS_CSV_TABLE_H_
#define STAGECOACH_ENGINE_DATA_FORMATS_CSV_TABLE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/text/csv_reader.h"
#include "engine/data/dataset.h"
#include "engine/data/formats/csv.h"

// The rows of tables, before they are encoded.
namespace stagecoach::engine {

// What a column of a file is.
struct CsvRole {
  enum class Kind : uint8_t { kFeature, kLabel, kDropped };
  Kind kind = Kind::kDropped;
  size_t index = 0;  // among the features, or among the labels
};

struct CsvHeader {
  std::vector<std::string> columns;
  std::vector<CsvRole> roles;       // by column
  std::vector<std::string> labels;  // the columns of labels; none: there are no labels
  int64_t features = 0;
};

// What is known about a column of features.
struct CsvColumn {
  bool is_known = false;
  bool is_text = false;
  std::map<std::string, int32_t> texts;  // a text's number, in order of appearance
};

// Texts that are none of those that a model was trained on.
struct UnknownTexts {
  int64_t count = 0;
  std::string column;  // of the first
  base::CsvField first;
  size_t file = 0;  // the number of its file
};

// The rows of one file, or of several in their order.
struct CsvTable {
  int64_t features = 0;
  int64_t rows = 0;
  std::vector<double> values;      // (rows, features); a text's number, or -1
  std::vector<CsvColumn> columns;  // by feature
  UnknownTexts unknown;
  LabelKind kind = LabelKind::kClasses;  // that of labels, if there are any
  size_t labels = 0;                     // of a row
  std::vector<double> numbers;           // (rows, labels), or
  std::vector<int32_t> classes;          // (rows), numbers of texts
  std::map<std::string, int32_t> texts;  // label text -> its number, in order of appearance
  bool knows_texts = false;              // others are errors
};

// Returns the columns that have the labels of a file to train on, CsvOptions::label_column; they
// may be missing.
std::vector<std::string> LabelColumnsOf(absl::Span<const std::string> columns,
                                        const std::string& label_column);

// Reads the rows of all files into `table`. With an encoding, they are for a model that was trained
// on data with it; null: they are trained on, and all columns but those of the labels and those
// that are dropped are features. All files have the columns of the first one, in any order. Returns
// the first one's header. Errors name the file.
absl::StatusOr<CsvHeader> ReadCsvFiles(absl::Span<const std::string> files,
                                       const CsvOptions& options, const DataEncoding* encoding,
                                       CsvTable& table);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FORMATS_CSV_TABLE_H_
