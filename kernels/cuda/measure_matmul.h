#ifndef STAGECOACH_KERNELS_CUDA_MEASURE_MATMUL_H_
#define STAGECOACH_KERNELS_CUDA_MEASURE_MATMUL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/matmul_plan.h"

namespace stagecoach::kernels {

// The candidate that computes the plan's product in the least time: the median of a few runs on
// operands of its own. Leaves the plan with some candidate in use. Waits for the GPU. An algorithm
// that refuses to run is passed over. `candidates` is not empty.
absl::StatusOr<MatmulPlan::Candidate> FindFastest(
    int gpu, MatmulPlan& plan, absl::Span<const MatmulPlan::Candidate> candidates);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_MEASURE_MATMUL_H_
