#include "kernels/ops/image_norm.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<ImageNormOp>> CreateOnCuda(const ImageNormShape& /*shape*/,
                                                          Device& /*device*/) {
  return absl::UnimplementedError("image norm has no CUDA kernel yet");
}

}  // namespace stagecoach::kernels
