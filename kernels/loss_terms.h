#ifndef STAGECOACH_KERNELS_LOSS_TERMS_H_
#define STAGECOACH_KERNELS_LOSS_TERMS_H_

#include <cstdint>

namespace stagecoach::kernels {

// The data that a loss needs about one micro-batch besides its shape. They change from run to run,
// while recorded work is issued again unchanged: so they lie in the device's memory, at an address
// that stays the same, and the loss reads them there. CUDA code includes this header too.
struct LossTerms {
  int64_t valid_samples = 0;  // how many samples, from the first on; the rest is padding
  float scale = 1.0F;         // of gradients, not of the sum of losses

  friend bool operator==(const LossTerms&, const LossTerms&) = default;
};

// In place of a label: nothing is learned from this row. Its loss and its gradient are 0, and it is
// neither right nor wrong.
inline constexpr int32_t kNoLabel = -1;

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_LOSS_TERMS_H_
