#ifndef STAGECOACH_ENGINE_RUN_GRADIENT_NORM_H_
#define STAGECOACH_ENGINE_RUN_GRADIENT_NORM_H_

#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "engine/model/parameter_table.h"
#include "engine/transport/transport.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// The global norm of all gradients and the factor that clips them, computed by every rank in the
// order of its stream, without the host waiting: each rank sums the squares of its own parameters'
// gradients, all ranks gather them, and each adds them up in the order of the model's parameters,
// whatever rank has them. So the result has the same bits for every partition.
class GradientNorm {
 public:
  // `parameters`: of the whole model. Its tables are not charged to the device's budget.
  static absl::StatusOr<GradientNorm> Create(kernels::Device& device, int ranks,
                                             const ParameterTable& parameters, float clip_norm);

  // Where the squared norms of a stage's parameters go: (own.size()) float64. Those of other ranks'
  // parameters stay 0.
  kernels::Tensor Squares(absl::Span<const ModelParameter> own) const;

  // Jobs of the device's stream, as are the others below. Gathers and combines.
  absl::Status Combine(Transport& transport, base::Deadline deadline);
  // The same without the other ranks' part.
  absl::Status CombineAlone();
  // What gradients are to be multiplied by: (1) float32 in the device's memory.
  const kernels::Tensor& scale() const { return scale_; }

  // Copies the norm to the host, in the stream's order; `value` has it once the stream has
  // finished.
  absl::Status Fetch();
  double value() const { return *reinterpret_cast<const double*>(host_norm_.data()); }

 private:
  GradientNorm(kernels::Device& device, float clip_norm)
      : device_(&device), clip_norm_(clip_norm) {}

  kernels::Device* device_;
  float clip_norm_;
  kernels::Buffer table_;
  kernels::HostBuffer host_norm_;
  kernels::Tensor own_squares_, all_squares_;  // (parameters), (ranks, parameters) float64
  kernels::Tensor norm_, scale_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUN_GRADIENT_NORM_H_
