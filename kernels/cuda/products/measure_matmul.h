#ifndef STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_
#define STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_

#include <cuda_runtime_api.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/cuda/products/matmul_plan.h"

namespace stagecoach::kernels {

// What is timed with a product: a kernel that follows it in the stream.
struct Followed {
  using Function =
      std::function<absl::Status(cudaStream_t stream, const MatmulPlan::Operands& operands)>;

  Product operands_of;  // for which there is memory: the product, perhaps with an epilogue
  Function follow;      // empty: nothing follows
};

struct MeasuredAlgorithm {
  MatmulPlan::CandidateAlgorithm candidate;
  float milliseconds = 0.0F;  // of the product and what follows it
};

// The candidate to compute the plan's product with (TuningBench::FindFastest), with operands in
// memory of its own. Candidates are in the order of the library's own estimates: with
// MatmulPlan::kMaxCandidates a product is measured in about 52 ms, or 160 times its own time if
// that is more.
//
// Leaves the plan with some candidate in use. Waits for the GPU. An error of the library passes
// over a candidate; an error of the GPU ends the search. Unimplemented, with the last reason, if no
// candidate is left. `candidates` is not empty.
absl::StatusOr<MeasuredAlgorithm> FindFastest(
    int gpu, MatmulPlan& plan, absl::Span<const MatmulPlan::CandidateAlgorithm> candidates,
    const Followed& followed);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_
