#ifndef STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_
#define STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
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

// Whether a way to compute that comes later in an order of preference is taken for faster: times
// vary, and so it must take 2 % less.
bool IsFaster(float milliseconds, float least_before);

// The candidate to compute the plan's product with: of those that run, and give the same bits when
// they run again on other contents of results and workspace, the one that takes the least time.
// Candidates are in the order of the library's own estimates (IsFaster).
//
// Operands are numbers of [-1, 1) in memory of its own. A sample is of as many runs, up to 16, as
// take about a millisecond. One is taken of every candidate, and then the median of five of the
// first candidate and of the three others that were fastest, each time after three other runs. So
// with n candidates a product is measured in about n + 20 ms, or in 4 n + 32 times its own time if
// that is more: 52 ms or 160 times with MatmulPlan::kMaxCandidates.
//
// Leaves the plan with some candidate in use. Waits for the GPU. An error of the library passes
// over a candidate; an error of the GPU ends the search. Unimplemented, with the last reason, if no
// candidate is left. `candidates` is not empty.
absl::StatusOr<MeasuredAlgorithm> FindFastest(
    int gpu, MatmulPlan& plan, absl::Span<const MatmulPlan::CandidateAlgorithm> candidates,
    const Followed& followed);

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_PRODUCTS_MEASURE_MATMUL_H_
