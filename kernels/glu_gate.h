#ifndef STAGECOACH_KERNELS_GLU_GATE_H_
#define STAGECOACH_KERNELS_GLU_GATE_H_

#include <cstdint>

namespace stagecoach::kernels {

// The function of the gated half of a GLU (Shazeer 2020). CUDA code includes this header too.
enum class GluGate : uint8_t {
  kSilu,  // SwiGLU
  kGelu,  // GeGLU, of the tanh form of GELU (kernels/activation.h)
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_GLU_GATE_H_
