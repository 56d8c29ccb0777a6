#include "engine/session/loss_options.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/types/span.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "engine/nn/loss.h"

namespace stagecoach::engine {
namespace {

// Returns the numbers between commas and white space. InvalidArgument quotes what is none.
absl::StatusOr<std::vector<float>> ParseWeights(absl::string_view text) {
  std::vector<float> weights;
  for (const absl::string_view part :
       absl::StrSplit(text, absl::ByAnyChar(", \t\r\n"), absl::SkipEmpty())) {
    float weight = 0.0F;
    if (!absl::SimpleAtof(part, &weight) || !(weight >= 0.0F) || !std::isfinite(weight)) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", part, "\" is not a finite number of 0 or more"));
    }
    weights.push_back(weight);
  }
  return weights;
}

absl::StatusOr<std::vector<float>> ClassWeightsOf(const RunConfig& options, const TrainTest& data) {
  const std::string& given = options.class_weights;
  const int64_t classes = data.train->classes();
  if (given == "auto") return BalancedWeights(*data.train);
  absl::StatusOr<std::vector<float>> weights = ParseWeights(given);
  std::string source = "--class-weights";
  if (!weights.ok() && base::Exists(given)) {
    constexpr int64_t kMostBytes = int64_t{64} << 20;
    absl::StrAppend(&source, " ", given);
    ASSIGN_OR_RETURN(const std::string text, base::ReadFile(given, kMostBytes));
    weights = ParseWeights(text);
  } else if (!weights.ok()) {
    return base::UsageError(absl::StrCat(source, ": ", weights.status().message(), ", and ", given,
                                         " is no file; expected auto, a number per class with "
                                         "commas between them, or a file of these"));
  }
  if (!weights.ok()) {
    return base::DataError(absl::StrCat(source, ": ", weights.status().message()));
  }
  if (std::ssize(*weights) != classes) {
    return base::UsageError(absl::StrCat(
        source, " has ", weights->size(), weights->size() == 1 ? " number" : " numbers",
        ", and the data ", classes, " classes, from \"", data.encoding.NameOf(0), "\" to \"",
        data.encoding.NameOf(classes - 1), "\""));
  }
  if (std::all_of(weights->begin(), weights->end(), [](float weight) { return weight == 0.0F; })) {
    return base::UsageError(absl::StrCat(source, " has only zeros: a class must have more"));
  }
  return weights;
}

}  // namespace

std::vector<float> BalancedWeights(const Dataset& data) {
  const auto classes = static_cast<size_t>(data.classes());
  std::vector<int64_t> counts(classes);
  std::vector<int32_t> labels(static_cast<size_t>(data.spec().target.answers()));
  int64_t all = 0;
  for (int64_t row = 0; row < data.rows(); ++row) {
    data.CopyTarget(row, absl::MakeSpan(reinterpret_cast<std::byte*>(labels.data()),
                                        labels.size() * sizeof(int32_t)));
    for (const int32_t label : labels) {
      if (label < 0 || static_cast<size_t>(label) >= classes) continue;
      ++counts[static_cast<size_t>(label)];
      ++all;
    }
  }
  std::vector<float> weights(classes, 1.0F);
  for (size_t c = 0; c < classes; ++c) {
    if (counts[c] == 0) continue;
    weights[c] = static_cast<float>(
        static_cast<double>(all) / (static_cast<double>(classes) * static_cast<double>(counts[c])));
  }
  return weights;
}

absl::Status SetLossOptions(const RunConfig& options, const TrainTest& data, Model& model) {
  if (options.label_smoothing == 0.0F && options.class_weights.empty()) return absl::OkStatus();
  if (!model.loss()->is_softmax_cross_entropy()) {
    return base::UsageError(
        absl::StrCat(options.class_weights.empty() ? "--label-smoothing" : "--class-weights",
                     " is for the cross-entropy of classes, and the model has another loss"));
  }
  CrossEntropyOptions loss = {.label_smoothing = options.label_smoothing};
  if (!options.class_weights.empty()) {
    ASSIGN_OR_RETURN(loss.class_weights, ClassWeightsOf(options, data));
  }
  model.loss = SoftmaxCrossEntropy(loss);
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
