#ifndef STAGECOACH_ENGINE_DATA_CSV_H_
#define STAGECOACH_ENGINE_DATA_CSV_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"

namespace stagecoach::engine {

struct CsvOptions {
  std::string label_column = "label";
  // The share of the rows held out for the test set, in (0, 1). Rounded to whole rows, of which
  // both sets get at least one.
  double test_fraction = 0.2;
  uint64_t seed = 0;  // chooses which rows are held out
  int64_t max_bytes = int64_t{2} << 30;
};

// Reads a table of numbers with one column of labels. The text is split as engine/data/csv_reader.h
// says. The first record names the columns, each differently. Every column but the label column is
// a feature, in the order of the file, and every field of it a decimal number without spaces, of
// magnitude below 3.4e38.
//
// Labels: if the distinct labels are exactly the integers 0, 1, ..., n-1, written plainly, label k
// is class k. Otherwise each distinct text is a class, numbered from 0 in the order of its bytes.
// There must be at least two classes.
//
// Both sets keep the order of the file. Every feature is standardized by its mean and standard
// deviation over the training rows; a feature that is constant there reads as 0 everywhere.
//
// NotFound for a missing file, ResourceExhausted for one above `max_bytes`, otherwise
// InvalidArgument. Errors in the text name file, line and column.
absl::StatusOr<TrainTest> LoadCsv(const std::string& path, const CsvOptions& options);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_CSV_H_
