#ifndef STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_
#define STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/products/matmul_plan.h"

namespace stagecoach::kernels {

// The candidate to compute the plan's product with: of those that run, and give the same bits when
// they run again on other contents of results and workspace, the one that takes the least time.
// Since times vary and candidates are in the order of the library's own estimates, a later one is
// taken for faster only if it takes 2 % less.
//
// Operands are numbers of [-1, 1) in memory of its own. Times are medians of a few samples, each of
// as many runs, up to 16, as take about a millisecond, so that a product is measured in about 50
// ms, or in some fifty times its own time if that is more.
//
// Leaves the plan with some candidate in use. Waits for the GPU. An error of the library passes
// over a candidate; an error of the GPU ends the search. Unimplemented, with the last reason, if no
// candidate is left. `candidates` is not empty.
absl::StatusOr<MatmulPlan::CandidateAlgorithm> FindFastest(
    int gpu, MatmulPlan& plan, absl::Span<const MatmulPlan::CandidateAlgorithm> candidates);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_
