#ifndef STAGECOACH_ENGINE_DATA_FORMATS_CIFAR_H_
#define STAGECOACH_ENGINE_DATA_FORMATS_CIFAR_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/data/dataset.h"

namespace stagecoach::engine {

// Readers for the binary version of CIFAR-10 (https://www.cs.toronto.edu/~kriz/cifar.html): records
// of 3,073 bytes, a label below 10 and then 3 x 32 x 32 pixels, those of red, green and blue, each
// row by row.
//
// Errors name the file, what was found and what was expected: NotFound for a missing file, DataLoss
// for one that does not end with a record, ResourceExhausted for one above the limit,
// InvalidArgument for one without records or with another label.

inline constexpr int64_t kMaxCifarBytes = int64_t{1} << 28;  // per file

// Returns whether that is a directory that has data_batch_1.bin.
bool HoldsCifar(const std::string& path);

// Reads data_batch_1.bin, data_batch_2.bin and so on, as many as there are, and test_batch.bin.
// Both sets are standardized by the mean and standard deviation of all training pixels.
absl::StatusOr<TrainTest> LoadCifarDirectory(const std::string& directory, Sets sets = Sets::kBoth);

// Loads the images of test_batch.bin, to predict, standardized as `encoding` says, which has one
// mean.
absl::StatusOr<std::shared_ptr<const Dataset>> LoadCifarImages(const std::string& directory,
                                                               const DataEncoding& encoding);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FORMATS_CIFAR_H_
