#ifndef STAGECOACH_ENGINE_RUNTIME_GRADIENT_NORM_H_
#define STAGECOACH_ENGINE_RUNTIME_GRADIENT_NORM_H_

#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/deadline.h"
#include "engine/comm/transport.h"
#include "engine/nn/parameter_table.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace stagecoach::engine {

// The global norm of all gradients and the factor that clips them, or that makes updates change
// nothing if the norm is not finite. Every rank computes it in the order of its stream, without the
// host waiting: each rank sums the squares of its own parameters' gradients, all ranks gather them,
// and each adds them up in the order of the model's parameters, whatever rank has them. So the
// result has the same bits for every partition.
class GradientNorm {
 public:
  // `parameters`: those of the whole model. `table`: memory of the device that is 0 and has the
  // size of schedule::NormTableBytes. `part`: the device's, in a stage. `clip_norm`: 0 clips
  // nothing.
  static absl::StatusOr<GradientNorm> Create(kernels::Device& device, std::byte* table, int ranks,
                                             TensorPart part, const ParameterTable& parameters,
                                             float clip_norm);

  // Returns the place for the squared norms of the pieces of a stage's parameters: float64. The
  // places of other ranks' parameters stay 0.
  kernels::Tensor Squares(absl::Span<const ModelParameter> own) const;

  // Sends this rank's squares to the other `ranks`, and receives theirs. A job of the device's
  // stream, as are those below.
  absl::Status Exchange(Transport& transport, absl::Span<const Rank> ranks,
                        base::Deadline deadline);
  // Then does the same with the other parts of this rank's stages, of which each has what its ranks
  // have sent: `transport` connects them.
  absl::Status ExchangeParts(Transport& transport, base::Deadline deadline);
  // Computes norm and scale, and copies the norm to the host.
  absl::Status Combine();
  // The factor for all gradients: (1) float32 in the device's memory.
  const kernels::Tensor& scale() const { return scale_; }

  // The norm, once the stream has finished.
  double value() const { return *reinterpret_cast<const double*>(host_norm_.data()); }

 private:
  GradientNorm(kernels::Device& device, float clip_norm)
      : device_(&device), clip_norm_(clip_norm) {}

  kernels::Device* device_;
  float clip_norm_;
  kernels::HostBuffer host_norm_;
  // (pieces), (ranks, pieces), (parts ranks, pieces) float64; the second is in the third.
  kernels::Tensor own_squares_, column_squares_, all_squares_;
  kernels::Tensor norm_, scale_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_GRADIENT_NORM_H_
