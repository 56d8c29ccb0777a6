#ifndef STAGECOACH_KERNELS_CPU_OPS_TOKENS_INDEPENDENT_HEAD_H_
#define STAGECOACH_KERNELS_CPU_OPS_TOKENS_INDEPENDENT_HEAD_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "kernels/device.h"
#include "kernels/ops/head.h"

namespace stagecoach::kernels {

// With HeadShape::independent_rows.
std::unique_ptr<HeadOp> CreateIndependentHead(const HeadShape& shape, Device& device);

// HeadOp::Choose, of logits that lie `stride` apart and are still to be rounded to T.
template <typename T>
void ChooseLargest(const float* logits, int64_t stride, const HeadChoice& choice) {
  int32_t largest = 0;
  float largest_logit = -std::numeric_limits<float>::infinity();
  for (int64_t c = 0; c < choice.classes; ++c) {
    const float logit = T(logits[c * stride]);
    if (!std::isfinite(logit)) {
      largest = kNoClass;
      break;
    }
    if (logit <= largest_logit) continue;
    largest = static_cast<int32_t>(c);
    largest_logit = logit;
  }
  if (choice.next != nullptr) *choice.next = largest == kNoClass ? 0 : largest;
  choice.chosen[(*choice.position)++] = largest;
}

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CPU_OPS_TOKENS_INDEPENDENT_HEAD_H_
