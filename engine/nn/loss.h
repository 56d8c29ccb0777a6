#ifndef STAGECOACH_ENGINE_NN_LOSS_H_
#define STAGECOACH_ENGINE_NN_LOSS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/data/sample_spec.h"
#include "engine/nn/call_context.h"
#include "kernels/device.h"
#include "kernels/loss_terms.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// Describes where a loss will run, and on what.
struct LossContext {
  kernels::Device& device;
  int64_t rows;           // samples of a micro-batch
  kernels::Shape output;  // shape of one sample of the last layer's output
};

// All that the engine must know about a loss before it runs. Bytes are per micro-batch.
struct LossSpec {
  std::string description;      // "softmax cross-entropy of 10 classes"
  TargetSpec target;            // what it compares outputs with; for kClasses, at most that many
  int64_t workspace_bytes = 0;  // scratch within a call
  // The loss per sample of a model that knows nothing yet, as a scale for progress; 0: unknown.
  double loss_of_guessing = 0.0;
  bool is_log_likelihood = false;  // negative, of the label: its exponential is a perplexity
  // In training, labels count as these say: the mean loss is over the sum of their weights. Empty:
  // all count alike.
  std::vector<float> class_weights = {};
  // Set by the engine: the last layer computes the loss (LayerSpec::computes_loss), and Compute is
  // never called.
  bool is_computed_by_layer = false;
};

// The operands of one call of a loss, for one micro-batch. y and dy are of the device's activation
// type. All are in the device's memory, which only operations of the device (kernels/ops) can touch
// unless memory_is_host().
struct LossArgs {
  kernels::Stream& stream;
  CallContext call;
  kernels::Tensor y;  // (rows, output)
  // (rows, target), int32 or float32; empty with TargetSpec::kNone. A label may be
  // kernels::kNoLabel if the data set says so.
  kernels::Tensor targets;
  // The number of valid rows, and the scale of dy (but not of the result). Kernels receive this
  // address, which is constant; the values behind it change during the run. Targets of padding are
  // undefined.
  const kernels::LossTerms* terms = nullptr;
  kernels::Tensor dy;  // of the shape of y; empty if no gradient is wanted, as in evaluation
  // (2) float64: the sum of the losses of the valid rows, and the number of their answers
  // (TargetSpec::answers) that are right, for accuracies; 0 for a loss without right and wrong.
  kernels::Tensor result;
  std::byte* workspace = nullptr;
};

// The function that training minimizes: maps a model's outputs and the samples' targets to a
// number. To define one, derive from this class.
//
// The engine calls Prepare once, then Compute in the order of the schedule, always from one thread
// (a job of the device's stream), also if only outputs are wanted: then no row is valid. Every call
// must depend on its arguments alone, and produce the same bits for the same arguments; a device
// may record what a call issues and issue it again. Rows must not depend on each other or on
// padding, whose dy is 0.
class Loss {
 public:
  virtual ~Loss() = default;

  // Checks the output's shape (InvalidArgument says what was expected) and creates what the calls
  // need.
  virtual absl::StatusOr<LossSpec> Prepare(const LossContext& context) = 0;

  // True for SoftmaxCrossEntropy() without options, which a last layer may compute in its place.
  virtual bool is_softmax_cross_entropy() const { return false; }

  // Computes the result and, if wanted, dy: the derivative of the sum of losses by y, times the
  // scale. If the result is not finite, dy must not be either: a step is judged by its gradients.
  virtual absl::Status Compute(const LossArgs& args) = 0;
};

// Makes a fresh, unprepared loss; called once for each place where the loss is to run.
using LossFactory = std::function<std::unique_ptr<Loss>()>;

// Returns a factory of a user's loss: LossOf<MyLoss>(arguments of its constructor...).
template <typename T, typename... Args>
LossFactory LossOf(Args... args) {
  return [=] { return std::make_unique<T>(args...); };
}

// The built-in losses over class labels: one label per sample if the output is of shape [classes],
// one at each position if it is [positions, classes]. The loss of a sample is the mean over its
// positions; a position is right if the first of its largest outputs is at the label. A position
// without a label (kernels::kNoLabel) counts as 0 and has no gradient: over a step, the mean is
// over the labels that there are. Formulas are in kernels/ops/loss.h.
struct CrossEntropyOptions {
  float label_smoothing = 0.0F;      // in [0, 1)
  std::vector<float> class_weights;  // one per class, finite and at least 0; empty: all are 1
};
// What is trained on is smoothed and weighted, as PyTorch's CrossEntropyLoss is: evaluations are
// always the plain loss, so that they can be compared.
LossFactory SoftmaxCrossEntropy(const CrossEntropyOptions& options = {});
LossFactory MeanSquaredError();  // from 1 at the label and 0 elsewhere

// The mean squared error of outputs of shape [n] that predict n numbers per sample (one if its
// target is of shape []). Numbers of loaded data (LoadData) are standardized: a model that always
// outputs their mean has a loss of 1.
LossFactory MeanSquaredErrorOfValues();

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LOSS_H_
