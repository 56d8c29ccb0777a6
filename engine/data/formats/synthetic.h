#ifndef STAGECOACH_ENGINE_DATA_FORMATS_SYNTHETIC_H_
#define STAGECOACH_ENGINE_DATA_FORMATS_SYNTHETIC_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/dataset.h"

namespace stagecoach::engine {

struct SyntheticSpec {
  int64_t rows = 0;  // of the training set
  int64_t features = 0;
  int64_t classes = 0;

  friend bool operator==(const SyntheticSpec&, const SyntheticSpec&) = default;
};

inline constexpr int64_t kMaxSyntheticFeatures = 1 << 20;
inline constexpr int64_t kMaxSyntheticClasses = 1 << 16;
// Limit of features x (training + test rows): 16 GiB of floats.
inline constexpr int64_t kMaxSyntheticValues = int64_t{1} << 32;

// Parses "ROWSxFEATURESxCLASSES", such as "10000x100x10". InvalidArgument if the text has another
// form, a number is not positive, there are fewer than two classes, or more than the limits above.
absl::StatusOr<SyntheticSpec> ParseSyntheticSpec(absl::string_view text);

// Makes a learnable problem of any size, without a file. Inputs x are standard normal. Labels come
// from a teacher network, one hidden layer of 32 ReLU units with normal weights:
//   logit_c = w_c . relu(V x),   label = argmax_c (logit_c - mean_c) / stddev_c
// Here mean_c and stddev_c are measured on 1024 separate inputs; without them a few classes would
// take most of the rows. Each of ten classes on 16 features or more has between half and twice its
// share; some of many classes on very few features stay empty.
//
// The test set has a fifth as many rows as the training set, at least one, from a separate random
// stream and labeled by the same teacher. Each sample depends only on (seed, features, classes,
// row), so a larger set begins with the rows of a smaller one. InvalidArgument as for
// ParseSyntheticSpec.
absl::StatusOr<TrainTest> MakeSynthetic(const SyntheticSpec& spec, uint64_t seed);

// Makes sets of the same shapes and as many rows, all of whose values are 0: for uses that read no
// values. Nothing is drawn, and no memory is taken for them.
absl::StatusOr<TrainTest> MakeSyntheticShapes(const SyntheticSpec& spec);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DATA_FORMATS_SYNTHETIC_H_
