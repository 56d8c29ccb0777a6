#ifndef STAGECOACH_KERNELS_CUDA_PRODUCTS_BLAS_LT_H_
#define STAGECOACH_KERNELS_CUDA_PRODUCTS_BLAS_LT_H_

#include <cublasLt.h>

#include <map>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "kernels/cuda/products/matmul_plan.h"
#include "kernels/cuda/products/measure_matmul.h"
#include "kernels/cuda/tuning/tuner.h"
#include "kernels/device.h"

namespace stagecoach::kernels {

// Returns the version of the library as it prints it: "13.1.0".
std::string CublasLtVersionText();

// The products of one device. Each is planned once, and has one algorithm, which depends on the
// product, the GPU's model, the version of cuBLASLt and the tuning file alone, not on what else was
// planned before.
class BlasLt {
 public:
  // `tuner`, which outlives the result, is told the version of cuBLASLt, and the algorithm of each
  // requested product, or "none".
  static absl::StatusOr<std::unique_ptr<BlasLt>> Create(Precision precision, Tuner& tuner);

  // Returns the plan for `product`, which all callers share and use on one stream only; it lives as
  // long as this object. Unimplemented if the library does not have the product with its epilogue
  // (without one it has all products), or has no algorithm for it that runs and has reproducible
  // bits. With a tuning file, the first request in all runs measures the candidates (FindFastest),
  // on memory that it allocates for that and on a stream of its own: ResourceExhausted if no memory
  // is left. FailedPrecondition, with the reason, if the file names an algorithm that
  // MatmulPlan::Rebuild refuses; DataLoss if its entry is not an algorithm. With a tuning file and
  // `apart`, which does the work of the epilogue after a plain product, that request also compares
  // the two ways: Unimplemented if the plain product and `apart` are faster. Thread-safe.
  absl::StatusOr<const MatmulPlan*> Plan(const Product& product,
                                         const Followed::Function& apart = nullptr);

  Precision precision() const { return precision_; }
  // Returns the compute capability that MatmulWorkspaceBytes needs.
  int compute_major() const { return tuner_.compute_major(); }

 private:
  struct DestroyHandle {
    void operator()(cublasLtContext* handle) const { static_cast<void>(cublasLtDestroy(handle)); }
  };
  using Handle = std::unique_ptr<cublasLtContext, DestroyHandle>;

  BlasLt(Precision precision, Tuner& tuner, Handle handle);

  absl::StatusOr<std::unique_ptr<MatmulPlan>> CreatePlan(const Product& product,
                                                         const Followed::Function& apart) const;
  // Returns the candidate that the plan should use.
  absl::StatusOr<MatmulPlan::CandidateAlgorithm> Choose(MatmulPlan& plan,
                                                        const Followed::Function& apart) const;
  absl::StatusOr<Algorithm> Measure(MatmulPlan& plan,
                                    absl::Span<const MatmulPlan::CandidateAlgorithm> candidates,
                                    MatmulPlan* plain, const Followed::Function& apart) const;

  const Precision precision_;
  Tuner& tuner_;
  const Handle handle_;  // outlives the plans

  base::Mutex mutex_;
  // Keyed by Product::ToString. A product that the library does not have is not requested again.
  std::map<std::string, absl::StatusOr<std::unique_ptr<MatmulPlan>>> plans_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_PRODUCTS_BLAS_LT_H_
