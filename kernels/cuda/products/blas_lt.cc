#include "kernels/cuda/products/blas_lt.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/runtime/status.h"
#include "kernels/cuda/tuning/measure.h"

namespace stagecoach::kernels {

std::string CublasLtVersionText() {
  const size_t version = cublasLtGetVersion();
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

BlasLt::BlasLt(Precision precision, Tuner& tuner, Handle handle)
    : precision_(precision), tuner_(tuner), handle_(std::move(handle)) {}

absl::StatusOr<std::unique_ptr<BlasLt>> BlasLt::Create(Precision precision, Tuner& tuner) {
  const GpuScope scope(tuner.gpu());
  RETURN_IF_ERROR(scope.status());
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(CublasStatus(cublasLtCreate(&handle), "cublasLtCreate"));
  Handle owner(handle);
  tuner.Tell("cuBLASLt", CublasLtVersionText());
  return std::unique_ptr<BlasLt>(new BlasLt(precision, tuner, std::move(owner)));
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
    tuner_.Tell(
        absl::StrCat("product ", key, ", ", PrecisionName(precision_), ", on ", tuner_.model()),
        created.ok() ? (*created)->algorithm().ToString() : "none");
    plan = plans_.emplace(key, std::move(created)).first;
  }
  RETURN_IF_ERROR(plan->second.status());
  return plan->second->get();
}

absl::StatusOr<std::unique_ptr<MatmulPlan>> BlasLt::CreatePlan(
    const Product& product, const Followed::Function& apart) const {
  const GpuScope scope(tuner_.gpu());
  RETURN_IF_ERROR(scope.status());
  ASSIGN_OR_RETURN(std::unique_ptr<MatmulPlan> plan,
                   MatmulPlan::Create(handle_.get(), product, precision_,
                                      MatmulWorkspaceBytes(product, compute_major())));
  ASSIGN_OR_RETURN(const MatmulPlan::CandidateAlgorithm candidate, Choose(*plan, apart));
  plan->Use(candidate);
  return plan;
}

absl::StatusOr<Algorithm> BlasLt::Measure(
    MatmulPlan& plan, absl::Span<const MatmulPlan::CandidateAlgorithm> candidates,
    MatmulPlan* plain, const Followed::Function& apart) const {
  Followed followed = {.operands_of = plan.product()};
  ASSIGN_OR_RETURN(const MeasuredAlgorithm fused,
                   FindFastest(tuner_.gpu(), plan, candidates, followed));
  if (plain == nullptr) return fused.candidate.algorithm;
  followed.follow = apart;
  const MatmulPlan::CandidateAlgorithm own = plain->candidate();
  ASSIGN_OR_RETURN(const MeasuredAlgorithm separate,
                   FindFastest(tuner_.gpu(), *plain, {&own, 1}, followed));
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
  if (!tuner_.measures()) return candidates.front();
  // Planned first, with its own choice in the file.
  std::unique_ptr<MatmulPlan> plain;
  if (apart != nullptr) {
    Product product = plan.product();
    product.epilogue = Epilogue::kNone;
    ASSIGN_OR_RETURN(plain, CreatePlan(product, nullptr));
  }
  const std::string work = absl::StrCat("cuBLASLt ", CublasLtVersionText(), ", ",
                                        PrecisionName(precision_), ", ", plan.product().ToString());
  ASSIGN_OR_RETURN(const Choice kept, tuner_.Choose(
                                          work, [](const Choice&) { return true; },
                                          [&]() -> absl::StatusOr<Choice> {
                                            ASSIGN_OR_RETURN(
                                                const Algorithm fastest,
                                                Measure(plan, candidates, plain.get(), apart));
                                            return fastest.ToChoice();
                                          }));
  absl::StatusOr<Algorithm> read = Algorithm::FromChoice(kept);
  if (!read.ok()) {
    return absl::DataLossError(absl::StrCat(tuner_.path(), " is damaged: what it has for \"", work,
                                            "\" is no algorithm (", read.status().message(),
                                            "): remove the file, or this entry of it"));
  }
  const Algorithm choice = *read;
  if (choice.apart != 0) {
    return absl::UnimplementedError("the product without it and a kernel after it are faster");
  }
  const auto offered = std::find_if(candidates.begin(), candidates.end(),
                                    [&](const MatmulPlan::CandidateAlgorithm& candidate) {
                                      return candidate.algorithm == choice;
                                    });
  if (offered != candidates.end()) return *offered;
  // The file may come from a search among other candidates.
  absl::StatusOr<MatmulPlan::CandidateAlgorithm> rebuilt = plan.Rebuild(choice);
  if (absl::IsUnimplemented(rebuilt.status())) {
    return absl::FailedPreconditionError(
        absl::StrCat(tuner_.path(), " names an algorithm that cannot be used for \"", work, "\" (",
                     rebuilt.status().message(), "): remove the file, or this entry of it"));
  }
  return rebuilt;
}

}  // namespace stagecoach::kernels
