#ifndef STAGECOACH_KERNELS_HEAD_CHOICE_H_
#define STAGECOACH_KERNELS_HEAD_CHOICE_H_

#include <cstdint>

namespace stagecoach::kernels {

// The result of HeadOp::Choose if a logit is NaN or infinite.
inline constexpr int32_t kNoClass = -1;

// The input of HeadOp::Choose (kernels/ops/head.h), and where it stores its choice. All of it
// except `chosen` is in the device's memory. CUDA code includes this header too.
struct HeadChoice {
  int64_t classes = 1;          // how many classes, from the first on; at most C
  int64_t* position = nullptr;  // index of the element of `chosen` to write; incremented afterwards
  int32_t* chosen = nullptr;    // in memory of AllocateHost, written while the stream is running
  int32_t* next = nullptr;      // gets the same value, but 0 for kNoClass; may be null
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_HEAD_CHOICE_H_
