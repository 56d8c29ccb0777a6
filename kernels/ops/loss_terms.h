#ifndef STAGECOACH_KERNELS_OPS_LOSS_TERMS_H_
#define STAGECOACH_KERNELS_OPS_LOSS_TERMS_H_

#include <cstdint>

namespace stagecoach::kernels {

// What a loss is told about one micro-batch besides its shape. It changes from run to run, and work
// that is recorded is issued again as it was: so it lies in the device's memory, at an address that
// stays, and whatever computes the loss reads it there. Code for CUDA includes this header too.
struct LossTerms {
  int64_t valid_samples = 0;  // the first so many; the rest is padding
  float scale = 1.0F;         // of gradients, not of the sum of losses

  friend bool operator==(const LossTerms&, const LossTerms&) = default;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_LOSS_TERMS_H_
