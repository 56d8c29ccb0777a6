#ifndef STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_REFERENCE_RUN_H_
#define STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_REFERENCE_RUN_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/data/dataset.h"
#include "engine/models/model.h"
#include "engine/train/trainer.h"
#include "kernels/tensor.h"
#include "partition/plan/plan.h"

// Runs of another framework, in files that its script writes: tests/fixtures/<name>/. Each is a
// file of safetensors with
//   begin/<parameter>     F32, its value at the start, by its name here ("layer 0: weight")
//   gradient/<parameter>  of the loss of the first step, if the optimizer updates the parameter
//   end/<parameter>       after all steps of AdamW
//   average/<parameter>   likewise, if the optimizer averages parameters; the logits are theirs
//   losses                one per step; all steps have the same batch
//   logits                the outputs for the batch in evaluation, after all steps
// and the samples, which the test turns into a data set. Numbers that are compared are F64.
namespace stagecoach::engine {

class ReferenceRun {
 public:
  // Reads the folder tests/fixtures/<name>. Aborts if there is none.
  explicit ReferenceRun(const std::string& name);

  struct Entry {
    Shape shape;
    std::vector<double> values;
  };
  // Aborts if there is no such tensor.
  const Entry& operator[](const std::string& name) const;
  // Returns the entries whose names begin with the prefix, without it.
  std::map<std::string, Entry> With(absl::string_view prefix) const;

 private:
  std::map<std::string, Entry> tensors_;
};

struct ReferenceTolerance {
  double values = 0.0;     // losses, parameters, outputs: relative to a tensor's largest value
  double gradients = 0.0;  // likewise, or, if the run is not in fp32, as in ExpectStepsOfAdamW
};

// Trains `model` by `plan` as the run did, and expects its numbers to within the tolerance. `data`
// has as many samples as the plan has in a batch. If the run is not in fp32, its gradients and
// AdamW's updates are compared with those of a run that is, from the same beginning.
void ExpectToMatch(const ReferenceRun& reference, const Model& model, const partition::Plan& plan,
                   const Dataset& data, const TrainerOptions& options,
                   const ReferenceTolerance& tolerance);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_TRAIN_RUNS_REFERENCE_RUN_H_
