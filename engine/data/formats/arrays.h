#ifndef STAGECOACH_ENGINE_DATA_FORMATS_ARRAYS_H_
#define STAGECOACH_ENGINE_DATA_FORMATS_ARRAYS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"

namespace stagecoach::engine {

// Readers for samples in NumPy's .npy files (engine/data/npy.h): a directory with
//   x_train.npy, x_test.npy  samples, row-major: (samples, features), (samples, height, width) or
//                            (samples, channels, height, width), or, with ChannelOrder::kLast,
//                            (samples, height, width, channels), which is read into the former
//                            order (ArrayOptions). A data set has the elements of a
//                            sample in one row, as they lie. "|u1" are pixels, standardized by the
//                            mean and standard deviation of all training pixels; "<f4", and "<f8"
//                            rounded to it, are finite numbers, which are fed unchanged.
//   y_train.npy, y_test.npy  (samples,): their labels, integers of 8 to 64 bits from 0 on. The
//                            number of classes is one more than the largest training label. With
//                            LabelKind::kNumbers, finite numbers, "<f4" or "<f8", or any integers,
//                            standardized by those of the training set.
//
// The samples of both sets are of one shape, and both are pixels or both numbers.
//
// Errors name the file, what was found and what was expected: NotFound for a missing file, DataLoss
// for one that is truncated or has extra bytes, ResourceExhausted for one above the limit,
// InvalidArgument for any other malformed content (another type, byte order, number of axes,
// Fortran order, channels that are likely to come last), or for files that do not fit together.

inline constexpr int64_t kMaxArrayBytes = int64_t{1} << 34;  // per file
inline constexpr int64_t kMaxArrayClasses = int64_t{1} << 20;

// Returns whether that is a directory that has x_train.npy or x_test.npy.
bool HoldsArrays(const std::string& path);

struct ArrayOptions {
  Sets sets = Sets::kBoth;
  LabelKind labels = LabelKind::kClasses;
  // Unset: kFirst, as documented. Then samples are refused if their shape is [height, width,
  // channels] and the model takes [channels, height, width]. Unless they have the shape that the
  // model takes, they are also refused if, read with channels last, they would be images of 1 or 3
  // channels, of at least 16 x 16 pixels, or 8 x 8 if square: such samples are almost always images
  // whose channels come last.
  std::optional<ChannelOrder> channels;
  kernels::Shape model_input;  // [] if the model does not say it
};
absl::StatusOr<TrainTest> LoadArrays(const std::string& directory,
                                     const ArrayOptions& options = {});

// Loads the samples of x_test.npy, to predict, encoded as `encoding` says, with the labels of
// y_test.npy if that exists; they are below `classes` unless the encoding says that they are
// numbers. Only the order of channels and the model's input are read from `options`.
// FailedPrecondition: the encoding is that of other data.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadArraySamples(const std::string& directory,
                                                                const DataEncoding& encoding,
                                                                int64_t classes,
                                                                const ArrayOptions& options = {});

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FORMATS_ARRAYS_H_
