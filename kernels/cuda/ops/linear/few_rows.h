#ifndef STAGECOACH_KERNELS_CUDA_OPS_LINEAR_FEW_ROWS_H_
#define STAGECOACH_KERNELS_CUDA_OPS_LINEAR_FEW_ROWS_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/ops/linear/few_rows_kernels.h"
#include "kernels/cuda/tuning/tuner.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"

namespace stagecoach::kernels {

inline InputNormArguments ArgumentsOf(const InputNorm& norm) {
  return {.gamma = norm.gamma.data,
          .beta = norm.centers ? norm.beta.data : nullptr,
          .epsilon = norm.epsilon,
          .centers = norm.centers};
}

// Runs the library's products for the same result, with that much workspace.
struct LibraryForward {
  std::function<absl::Status(cudaStream_t stream, const FewRowsArguments& a, std::byte* workspace)>
      run;
  int64_t workspace_bytes = 0;
};

// Returns the tile that computes the shape, for which FitsFewRows holds, or null if the library
// should compute it, as it does without a tuning file. With a file, the first request in all runs
// measures both, as graphs that read several matrices w in turn, so that a GPU's cache holds them
// no longer than those of a model.
absl::StatusOr<const FewRowsTile*> ChooseFewRows(Tuner& tuner, const LinearShape& shape,
                                                 const LibraryForward& library);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_OPS_LINEAR_FEW_ROWS_H_
