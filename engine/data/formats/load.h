#ifndef STAGECOACH_ENGINE_DATA_FORMATS_LOAD_H_
#define STAGECOACH_ENGINE_DATA_FORMATS_LOAD_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/data/augment.h"
#include "engine/data/dataset.h"
#include "engine/data/tokens/tokens.h"

namespace stagecoach::engine {

// Describes the origin of a run's samples, as a user writes it.
struct DataSource {
  // "synthetic:ROWSxFEATURESxCLASSES" (engine/data/formats/synthetic.h), or a file or a directory
  // of one of the formats of engine/data/formats/format.h, or several files of one format that
  // takes them (engine/data/data_files.h), whose samples follow each other as if they were joined.
  std::string spec;
  // Origin of the test set, as for LoadSamples; "": `spec`. All of a file is then used for
  // training, and a directory's own test set is not read.
  std::string test_spec;
  // The share of a divided file (IsDivided) that is its test set, in (0, 1); unset:
  // DataFormat::test_fraction.
  std::optional<double> test_fraction;
  std::string label_column = "label";        // in a .csv file; CsvOptions
  std::vector<std::string> dropped_columns;  // of a .csv file
  LabelKind labels = LabelKind::kClasses;    // kNumbers: for a .csv file or arrays
  // For arrays (ArrayOptions): what the user says about the order, and what the model says about
  // its input.
  std::optional<ChannelOrder> channels;
  kernels::Shape model_input;
  // For files of images: the side of the square samples that they become (0: that of the model's
  // input, or kDefaultImageSide), and whether those that cannot be read are left out, with a
  // notice.
  int64_t image_size = 0;
  bool skips_broken_images = false;
  Augmentation augmentation;  // of the training set, which are images
  // Number of training samples to keep (SomeTrainingRows); 0 keeps all. The standardization stays
  // that of the whole training set.
  int64_t train_rows = 0;
  // True if the values of a synthetic set are not needed (MakeSyntheticShapes).
  bool has_shapes_only = false;
  uint64_t seed = 0;    // of a synthetic set, and of the choice of a .csv file's test rows
  TokenOptions tokens;  // except for what is said above
  // Told what else there is to know about the data, such as examples that are left out; may be
  // empty.
  std::function<void(const std::string&)> on_notice = {};
};

// Returns whether the test set is a part of the same file or folder: a table, tokens in one file,
// or images without a folder for tests.
bool IsDivided(const DataSource& source);

// Errors are NotFound for a missing file or directory, and DataLoss or InvalidArgument for
// malformed content, for a spec of none of these forms, for more training rows than there are, for
// labels of the other kind, or for a test set without labels. Also the errors of LoadSamples.
absl::StatusOr<TrainTest> LoadData(const DataSource& source);

// Returns a view of some of the training samples that LoadData has loaded: the first in the order
// of the file, or, of a folder of images, whose classes follow each other, such as are spread over
// it. InvalidArgument unless there are as many.
absl::StatusOr<std::shared_ptr<const Dataset>> SomeTrainingRows(
    const DataSource& source, std::shared_ptr<const Dataset> train, int64_t rows);

// Loads samples for a model to predict, encoded like those that it was trained on: all rows of a
// .csv file, with or without a label column; the test images of a directory of CIFAR-10, or the
// test samples of arrays or of IDX files, with labels if they exist; those of one file of IDX
// images; those of a folder of images (LoadFolderImages); the test set of a synthetic spec; tokens
// as in LoadTokenSamples. Neither train_rows nor labels are read from `source`: the encoding says
// which labels. `classes`: the number that the model tells apart. FailedPrecondition: the encoding
// is that of another kind of data. Other errors: those of LoadData.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadSamples(const DataSource& source,
                                                           const DataEncoding& encoding,
                                                           int64_t classes);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FORMATS_LOAD_H_
