#ifndef STAGECOACH_KERNELS_OPS_HEAD_CHOICE_H_
#define STAGECOACH_KERNELS_OPS_HEAD_CHOICE_H_

#include <cstdint>

namespace stagecoach::kernels {

// What HeadOp::Choose gives where a logit is not finite.
inline constexpr int32_t kNoClass = -1;

// What HeadOp::Choose (kernels/ops/head.h) chooses among, and where it puts what it chooses. All
// but `chosen` is in the device's memory. Code for CUDA includes this header too.
struct HeadChoice {
  int64_t classes = 1;          // the first so many, at most C
  int64_t* position = nullptr;  // which number of `chosen` is written; then one is added to it
  int32_t* chosen = nullptr;    // in memory of AllocateHost, written while the stream goes on
  int32_t* next = nullptr;      // has the same then, but 0 for kNoClass; may be null
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_OPS_HEAD_CHOICE_H_
