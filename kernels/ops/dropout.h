#ifndef STAGECOACH_KERNELS_OPS_DROPOUT_H_
#define STAGECOACH_KERNELS_OPS_DROPOUT_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/ops/operation.h"
#include "kernels/tensor.h"

namespace stagecoach::kernels {

class DropoutOp;

struct DropoutShape {
  using Op = DropoutOp;

  int64_t rows = 1;      // R: samples of a micro-batch
  int64_t elements = 1;  // E: of a sample
  float rate = 0.0F;     // the share of elements that are dropped, in [0, 1)
};

// The values that a mask depends on, besides E and the rate.
struct DropoutKey {
  uint64_t seed = 0;
  uint64_t stream = 0;
  // The number of the first sample, in the device's memory; the others follow it. Null: 0.
  const int64_t* first_sample = nullptr;
};

// y = x / (1 - rate) where an element is kept, 0 where it is dropped (Srivastava et al. 2014).
//   x, y (R, E), of the device's activation type
// Element e of sample n is dropped if word 4 ceil(E / 4) n + e of base::RandomStream(seed, stream)
// is below 2^32 rate: the mask is the same whenever and wherever it is computed, so none is stored.
class DropoutOp : public Operation {
 public:
  // Computes y from x. It is also the gradient: dx from dy with the same key. `y` may be `x`.
  virtual absl::Status Apply(Stream& stream, const DropoutKey& key, const Tensor& x,
                             const Tensor& y) = 0;
};

// Returns the threshold below which a word drops its element.
uint32_t DropoutThreshold(float rate);
// Returns the factor of kept elements.
float DropoutScale(float rate);

// InvalidArgument: also a rate outside [0, 1).
absl::StatusOr<std::unique_ptr<DropoutOp>> CreateOnCpu(const DropoutShape& shape, Device& device);
absl::StatusOr<std::unique_ptr<DropoutOp>> CreateOnCuda(const DropoutShape& shape, Device& device);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_DROPOUT_H_
