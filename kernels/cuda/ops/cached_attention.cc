#include "kernels/ops/cached_attention.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<CachedAttentionOp>> CreateOnCuda(
    const CachedAttentionShape& /*shape*/, Device& /*device*/) {
  return absl::UnimplementedError("attention with a cache has no CUDA kernel yet");
}

}  // namespace stagecoach::kernels
