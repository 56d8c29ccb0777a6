#include "kernels/ops/head.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<HeadOp>> CreateOnCuda(const HeadShape& /*shape*/,
                                                     Device& /*device*/) {
  return absl::UnimplementedError("head has no CUDA kernel yet");
}

}  // namespace stagecoach::kernels
