#include "kernels/ops/pooling.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<PoolingOp>> CreateOnCuda(const PoolingShape& /*shape*/,
                                                        Device& /*device*/) {
  return absl::UnimplementedError("pooling has no CUDA kernel yet");
}

}  // namespace stagecoach::kernels
