#include "kernels/ops/dropout.h"

namespace stagecoach::kernels {

// The largest rate below 1 has a threshold of 2^32 - 2^8.
uint32_t DropoutThreshold(float rate) {
  return static_cast<uint32_t>(static_cast<double>(rate) * 0x1p32);
}

float DropoutScale(float rate) {
  return static_cast<float>(1.0 / (1.0 - static_cast<double>(rate)));
}

}  // namespace stagecoach::kernels
