#ifndef STAGECOACH_KERNELS_CPU_OPS_ATTENTION_PARTS_H_
#define STAGECOACH_KERNELS_CPU_OPS_ATTENTION_PARTS_H_

#include "kernels/math.h"

// What both forms of attention on a CPU share.
namespace stagecoach::kernels {

// e^x, which is 0 far below 0.
inline float SoftmaxWeight(float x) { return x < -87.0F ? 0.0F : FastExp(x); }

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_ATTENTION_PARTS_H_
