#include "kernels/cuda/products/blas_lt.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {

std::string CublasLtVersionText() {
  const size_t version = cublasLtGetVersion();
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

BlasLt::BlasLt(int gpu, Precision precision, int compute_major, std::string model, Handle handle,
               std::shared_ptr<TuningTable> tuning)
    : gpu_(gpu),
      precision_(precision),
      compute_major_(compute_major),
      model_(std::move(model)),
      handle_(std::move(handle)),
      tuning_(std::move(tuning)) {}

absl::StatusOr<std::unique_ptr<BlasLt>> BlasLt::Create(int gpu, Precision precision,
                                                       const std::string& tuning_file) {
  const GpuScope scope(gpu);
  RETURN_IF_ERROR(scope.status());
  cudaDeviceProp properties = {};
  RETURN_IF_ERROR(CudaStatus(cudaGetDeviceProperties(&properties, gpu), "cudaGetDeviceProperties"));
  std::shared_ptr<TuningTable> tuning;
  if (!tuning_file.empty()) {
    ASSIGN_OR_RETURN(tuning, TuningTable::Open(tuning_file));
  }
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(CublasStatus(cublasLtCreate(&handle), "cublasLtCreate"));
  Handle owner(handle);
  std::string model =
      absl::StrCat(properties.name, ", ", properties.multiProcessorCount, " multiprocessors");
  return std::unique_ptr<BlasLt>(new BlasLt(gpu, precision, properties.major, std::move(model),
                                            std::move(owner), std::move(tuning)));
}

absl::StatusOr<const MatmulPlan*> BlasLt::Plan(const Product& product,
                                               const Followed::Function& apart) {
  base::MutexLock lock(mutex_);
  const std::string key = product.ToString();
  auto plan = plans_.find(key);
  if (plan == plans_.end()) {
    absl::StatusOr<std::unique_ptr<MatmulPlan>> created = CreatePlan(product, apart);
    if (!created.ok()) created = base::Annotate(created.status(), absl::StrCat("product ", key));
    if (!created.ok() && !absl::IsUnimplemented(created.status())) return created.status();
    plan = plans_.emplace(key, std::move(created)).first;
  }
  RETURN_IF_ERROR(plan->second.status());
  return plan->second->get();
}

std::vector<std::string> BlasLt::choices() {
  std::vector<std::string> texts = {absl::StrCat("cuBLASLt: ", CublasLtVersionText())};
  base::MutexLock lock(mutex_);
  for (const auto& [product, plan] : plans_) {
    texts.push_back(absl::StrCat("product ", product, ", ", PrecisionName(precision_), ", on ",
                                 model_, ": ",
                                 plan.ok() ? (*plan)->algorithm().ToString() : "none"));
  }
  return texts;
}

absl::StatusOr<std::unique_ptr<MatmulPlan>> BlasLt::CreatePlan(
    const Product& product, const Followed::Function& apart) const {
  const GpuScope scope(gpu_);
  RETURN_IF_ERROR(scope.status());
  ASSIGN_OR_RETURN(std::unique_ptr<MatmulPlan> plan,
                   MatmulPlan::Create(handle_.get(), product, precision_,
                                      MatmulWorkspaceBytes(product, compute_major_)));
  ASSIGN_OR_RETURN(const MatmulPlan::CandidateAlgorithm candidate, Choose(*plan, apart));
  plan->Use(candidate);
  return plan;
}

absl::StatusOr<Algorithm> BlasLt::Measure(
    MatmulPlan& plan, absl::Span<const MatmulPlan::CandidateAlgorithm> candidates,
    MatmulPlan* plain, const Followed::Function& apart) const {
  Followed followed = {.operands_of = plan.product()};
  ASSIGN_OR_RETURN(const MeasuredAlgorithm fused, FindFastest(gpu_, plan, candidates, followed));
  if (plain == nullptr) return fused.candidate.algorithm;
  followed.follow = apart;
  const MatmulPlan::CandidateAlgorithm own = plain->candidate();
  ASSIGN_OR_RETURN(const MeasuredAlgorithm separate,
                   FindFastest(gpu_, *plain, {&own, 1}, followed));
  if (IsFaster(separate.milliseconds, fused.milliseconds)) return Algorithm{.apart = 1};
  return fused.candidate.algorithm;
}

absl::StatusOr<MatmulPlan::CandidateAlgorithm> BlasLt::Choose(
    MatmulPlan& plan, const Followed::Function& apart) const {
  ASSIGN_OR_RETURN(const std::vector<MatmulPlan::CandidateAlgorithm> candidates, plan.Candidates());
  if (candidates.empty()) {
    return absl::UnimplementedError(
        absl::StrCat("cuBLASLt ", CublasLtVersionText(), " has no algorithm for it"));
  }
  if (tuning_ == nullptr) return candidates.front();
  const std::string key = absl::StrCat(model_, ", cuBLASLt ", CublasLtVersionText(), ", ",
                                       PrecisionName(precision_), ", ", plan.product().ToString());
  // Planned first, with a choice of its own in the file.
  std::unique_ptr<MatmulPlan> plain;
  if (apart != nullptr) {
    Product product = plan.product();
    product.epilogue = Epilogue::kNone;
    ASSIGN_OR_RETURN(plain, CreatePlan(product, nullptr));
  }
  ASSIGN_OR_RETURN(const Algorithm choice, tuning_->Choose(key, [&] {
    return Measure(plan, candidates, plain.get(), apart);
  }));
  if (choice.apart != 0) {
    return absl::UnimplementedError("the product without it and a kernel after it are faster");
  }
  const auto offered = std::find_if(candidates.begin(), candidates.end(),
                                    [&](const MatmulPlan::CandidateAlgorithm& candidate) {
                                      return candidate.algorithm == choice;
                                    });
  if (offered != candidates.end()) return *offered;
  // The file may be of a search among other candidates.
  absl::StatusOr<MatmulPlan::CandidateAlgorithm> rebuilt = plan.Rebuild(choice);
  if (absl::IsUnimplemented(rebuilt.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(tuning_->path(), " names an algorithm that cannot be used for \"", key, "\" (",
                     rebuilt.status().message(), "): remove the file, or this entry of it"));
  }
  return rebuilt;
}

}  // namespace stagecoach::kernels
