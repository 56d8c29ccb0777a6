#ifndef STAGECOACH_ENGINE_TRAIN_CLASS_METRICS_H_
#define STAGECOACH_ENGINE_TRAIN_CLASS_METRICS_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace stagecoach::engine {

// Metrics of MetricTypes that are computed from a model's outputs for each sample, of which each
// has one class as its label:
//   test_top5  the share of samples whose label has one of the five largest outputs; of equal
//              outputs, the first counts as larger
//   test_f1    the mean over classes of 2 TP / (2 TP + FP + FN), over those that are the label or
//              the prediction of a sample ("macro")
//   test_auc   the area under the curve of true over false positives, by the probability that the
//              softmax gives to a class: of two classes that of the second, otherwise the mean over
//              all classes that have samples and are not the only one ("one against the rest,
//              macro"). Equal probabilities count half. NaN: there is no such class.
bool IsOfOutputs(absl::string_view metric);
std::vector<std::string> MetricsOfOutputs();

// Collects outputs, row by row. Takes 4 bytes for each output if test_auc is wanted.
class ClassMetrics {
 public:
  // `metrics`: of MetricsOfOutputs.
  ClassMetrics(const std::vector<std::string>& metrics, int64_t classes);

  void Add(absl::Span<const float> outputs, int32_t label);
  std::map<std::string, double> Results() const;

 private:
  double TopShare() const;
  double MacroF1() const;
  double MacroAuc() const;
  double AucOf(size_t one) const;

  const std::vector<std::string> metrics_;
  const size_t classes_;
  bool ranks_ = false;  // AUC is wanted
  int64_t rows_ = 0, among_top_ = 0;
  std::vector<int64_t> labelled_, predicted_, right_;  // of each class
  std::vector<int32_t> labels_;                        // of each row, if ranks_
  std::vector<float> log_odds_;                        // (rows, classes), if ranks_
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_CLASS_METRICS_H_
