#include "kernels/ops/convolution.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::kernels {

absl::StatusOr<std::unique_ptr<ConvolutionOp>> CreateOnCuda(const ConvolutionShape& /*shape*/,
                                                            Device& /*device*/) {
  return absl::UnimplementedError("convolution has no CUDA kernel yet");
}

}  // namespace stagecoach::kernels
