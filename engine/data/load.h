#ifndef STAGECOACH_ENGINE_DATA_LOAD_H_
#define STAGECOACH_ENGINE_DATA_LOAD_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"
#include "engine/data/tokens.h"

namespace stagecoach::engine {

// Where the samples of a run come from, as a user writes it.
struct DataSource {
  // "synthetic:ROWSxFEATURESxCLASSES" (engine/data/synthetic.h), a path that ends in ".csv"
  // (engine/data/csv.h), a text or ids of tokens (HoldsTokens in engine/data/tokens.h), or
  // otherwise a directory: of arrays (engine/data/arrays.h), of CIFAR-10 (engine/data/cifar.h) or
  // of IDX files (engine/data/idx.h). Of a directory that has files of several, the first of these.
  std::string spec;
  // Where the test set comes from, as LoadSamples has it; "": from `spec`. All of a file is then to
  // train on, and a directory's own test set is not read.
  std::string test_spec;
  // Of a file that is divided (IsDivided), in (0, 1): the share that is its test set; unset: a
  // fifth of a table, a tenth of tokens.
  std::optional<double> test_fraction;
  std::string label_column = "label";      // of a .csv file
  LabelKind labels = LabelKind::kClasses;  // numbers: of a .csv file or arrays
  // Of arrays (ArrayOptions): what the user says of the order, and what the model of its input.
  std::optional<ChannelOrder> channels;
  kernels::Shape model_input;
  // Keep only this many training rows, the first in the order of the file; 0 keeps all. The
  // standardization stays that of the whole training set.
  int64_t train_rows = 0;
  uint64_t seed = 0;    // of a synthetic set, and of the choice of a .csv file's test rows
  TokenOptions tokens;  // but for what is said above
};

// Whether the test set is a part of the same file: of a table, or of tokens in one file.
bool IsDivided(const DataSource& source);

// Errors are NotFound for a missing file or directory, and DataLoss or InvalidArgument for
// malformed content, for a spec of none of these forms, for more training rows than there
// are, for labels of the other kind, or for a test set without labels. Those of LoadSamples.
absl::StatusOr<TrainTest> LoadData(const DataSource& source);

// Samples for a model to predict, encoded as those that it was trained on: all rows of a .csv file,
// with or without a label column; the test images of a directory of CIFAR-10, or the test samples
// of arrays or of IDX files, with labels if they are there; those of one file of IDX images; the
// test set of a synthetic spec; tokens as LoadTokenSamples has them. Of `source`, train_rows is not
// read, nor is labels: the encoding knows. `classes`: what the model tells apart.
// FailedPrecondition: the encoding is of another kind of data. Other errors: those of LoadData.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadSamples(const DataSource& source,
                                                           const DataEncoding& encoding,
                                                           int64_t classes);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_LOAD_H_
