#include "kernels/ops/relu.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<ReluOp>> CreateOnCuda(const ReluShape& /*shape*/,
                                                     Device& /*device*/) {
  return absl::UnimplementedError("relu has no CUDA kernel yet");
}

}  // namespace stagecoach::kernels
