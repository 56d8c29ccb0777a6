#include "kernels/ops/attention.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<AttentionOp>> CreateOnCuda(const AttentionShape& /*shape*/,
                                                          Device& /*device*/) {
  return absl::UnimplementedError("attention has no CUDA kernel yet");
}

}  // namespace stagecoach::kernels
