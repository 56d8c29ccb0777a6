#ifndef STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_
#define STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_

#include <cuda_runtime_api.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/products/matmul_plan.h"

namespace stagecoach::kernels {

// A kernel that follows a product in the stream and is timed with it.
struct Followed {
  using Function =
      std::function<absl::Status(cudaStream_t stream, const MatmulPlan::Operands& operands)>;

  Product operands_of;  // the product whose operands have memory, perhaps with an epilogue
  Function follow;      // empty: nothing follows
};

struct MeasuredAlgorithm {
  MatmulPlan::CandidateAlgorithm candidate;
  float milliseconds = 0.0F;  // of the product and the work that follows it
};

// Returns the candidate to compute the plan's product with (TuningBench::FindFastest), with
// operands in memory of its own. Candidates are in the order of the library's own estimates: with
// MatmulPlan::kMaxCandidates a product is measured in about 52 ms, or 160 times its own time if
// that is more.
//
// Leaves the plan with some candidate in use. Waits for the GPU. A candidate with a library error
// is skipped; an error of the GPU ends the search. Unimplemented, with the last reason, if no
// candidate is left. `candidates` is not empty.
absl::StatusOr<MeasuredAlgorithm> FindFastest(
    int gpu, MatmulPlan& plan, absl::Span<const MatmulPlan::CandidateAlgorithm> candidates,
    const Followed& followed);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_
