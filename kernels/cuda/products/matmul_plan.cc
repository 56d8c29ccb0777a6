#include "kernels/cuda/products/matmul_plan.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/device/issue_count.h"
#include "kernels/cuda/device/scratch.h"
#include "kernels/cuda/runtime/status.h"

namespace stagecoach::kernels {
namespace {

// CUBLASLT_REDUCTION_SCHEME_INPLACE adds the parts of a split product in the order in which they
// happen to finish; CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE rounds them to the type of the result
// before it adds them, but sums must be float32.
constexpr uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;

// The type of alpha and beta.
constexpr cudaDataType_t kScaleType = CUDA_R_32F;

cudaDataType_t LibraryType(DType type) {
  return type == DType::kBfloat16 ? CUDA_R_16BF : CUDA_R_32F;
}

const char* TypeName(DType type) { return type == DType::kBfloat16 ? "bf16" : "fp32"; }

cublasLtEpilogue_t LibraryEpilogue(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case Epilogue::kBias:
      return CUBLASLT_EPILOGUE_BIAS;
    case Epilogue::kReluBias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
    case Epilogue::kGeluAuxBias:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
  }
  base::PrintAndAbort(__FILE__, __LINE__, "LibraryEpilogue", "unknown epilogue");
}

const char* EpilogueName(Epilogue epilogue) {
  switch (epilogue) {
    case Epilogue::kNone:
      return "none";
    case Epilogue::kBias:
      return "bias";
    case Epilogue::kReluBias:
      return "relu_bias";
    case Epilogue::kGeluAuxBias:
      return "gelu_aux_bias";
  }
  base::PrintAndAbort(__FILE__, __LINE__, "EpilogueName", "unknown epilogue");
}

template <typename T>
absl::Status Set(cublasLtMatmulDesc_t description, cublasLtMatmulDescAttributes_t attribute,
                 const T& value) {
  return CublasStatus(cublasLtMatmulDescSetAttribute(description, attribute, &value, sizeof(value)),
                      "cublasLtMatmulDescSetAttribute");
}

template <typename T>
absl::Status Set(cublasLtMatmulPreference_t preference,
                 cublasLtMatmulPreferenceAttributes_t attribute, const T& value) {
  return CublasStatus(
      cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
      "cublasLtMatmulPreferenceSetAttribute");
}

// Converts what the library says of an algorithm: Unimplemented if it refuses it.
absl::Status AlgorithmStatus(cublasStatus_t status, absl::string_view call) {
  const absl::Status result = CublasStatus(status, call);
  const bool is_refused = status == CUBLAS_STATUS_NOT_SUPPORTED ||
                          status == CUBLAS_STATUS_ARCH_MISMATCH ||
                          status == CUBLAS_STATUS_INVALID_VALUE;
  return is_refused ? absl::UnimplementedError(result.message()) : result;
}

template <typename T>
absl::Status Set(cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute,
                 const T& value) {
  return AlgorithmStatus(
      cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof(value)),
      "cublasLtMatmulAlgoConfigSetAttribute");
}

template <typename T>
absl::Status Get(const cublasLtMatmulAlgo_t& algorithm,
                 cublasLtMatmulAlgoConfigAttributes_t attribute, T& value) {
  size_t written = 0;
  return CublasStatus(
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, attribute, &value, sizeof(value), &written),
      "cublasLtMatmulAlgoConfigGetAttribute");
}

// Calls `visit` with each attribute of an algorithm and its place, except for the id, which is
// read-only.
template <typename AnyAlgorithm, typename Visit>
absl::Status ForEachAttribute(AnyAlgorithm& algorithm, Visit visit) {
  RETURN_IF_ERROR(visit(CUBLASLT_ALGO_CONFIG_TILE_ID, algorithm.tile));
  RETURN_IF_ERROR(visit(CUBLASLT_ALGO_CONFIG_STAGES_ID, algorithm.stages));
  RETURN_IF_ERROR(visit(CUBLASLT_ALGO_CONFIG_SPLITK_NUM, algorithm.split_k));
  RETURN_IF_ERROR(visit(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, algorithm.reduction));
  RETURN_IF_ERROR(visit(CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, algorithm.swizzle));
  RETURN_IF_ERROR(visit(CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, algorithm.custom_option));
  RETURN_IF_ERROR(visit(CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, algorithm.inner_shape));
  return visit(CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, algorithm.cluster_shape);
}

absl::StatusOr<Algorithm> Identify(const cublasLtMatmulAlgo_t& library) {
  Algorithm algorithm;
  RETURN_IF_ERROR(Get(library, CUBLASLT_ALGO_CONFIG_ID, algorithm.id));
  RETURN_IF_ERROR(ForEachAttribute(
      algorithm, [&library](cublasLtMatmulAlgoConfigAttributes_t attribute, auto& value) {
        return Get(library, attribute, value);
      }));
  return algorithm;
}

bool IsAligned(const void* address) {
  return reinterpret_cast<uintptr_t>(address) % kMatmulAlignment == 0;
}

}  // namespace

std::string Product::ToString() const {
  std::string text = absl::StrCat("A", transpose_a ? "^T" : "", " B", transpose_b ? "^T" : "", " ",
                                  TypeName(operand_type), " ", m, "x", n, "x", k, " -> ",
                                  TypeName(result_type), ", ", EpilogueName(epilogue));
  for (const auto& [name, leading] : {std::pair("lda", lda), {"ldb", ldb}, {"ldd", ldd}}) {
    if (leading != 0) absl::StrAppend(&text, ", ", name, " ", leading);
  }
  return text;
}

int64_t MatmulWorkspaceBytes(const Product& product, int compute_major) {
  const int64_t recommended = int64_t{compute_major >= 9 ? 32 : 4} << 20;
  const int64_t in_proportion =
      2 * (product.a().bytes() + product.b().bytes() + product.d().bytes());
  return std::min(recommended, AlignScratch(in_proportion));
}

absl::StatusOr<std::unique_ptr<MatmulPlan>> MatmulPlan::Create(cublasLtHandle_t handle,
                                                               const Product& product,
                                                               Precision precision,
                                                               int64_t workspace_bytes) {
  // A rule of the library, whose error would blame the arguments.
  constexpr int64_t kAuxMultiple = 8;
  if (product.epilogue == Epilogue::kGeluAuxBias && product.m % kAuxMultiple != 0) {
    return absl::UnimplementedError(
        absl::StrCat("cuBLASLt stores aux only with multiples of ", kAuxMultiple, " rows"));
  }
  const cublasComputeType_t compute_type =
      precision == Precision::kTf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
  std::unique_ptr<MatmulPlan> plan(new MatmulPlan(handle, product, compute_type, workspace_bytes));
  RETURN_IF_ERROR(plan->Describe());
  return plan;
}

absl::Status MatmulPlan::Describe() {
  cublasLtMatmulDesc_t description = nullptr;
  RETURN_IF_ERROR(CublasStatus(cublasLtMatmulDescCreate(&description, compute_type_, kScaleType),
                               "cublasLtMatmulDescCreate"));
  description_.reset(description);
  const auto operation = [](bool transpose) {
    return static_cast<int32_t>(transpose ? CUBLAS_OP_T : CUBLAS_OP_N);
  };
  RETURN_IF_ERROR(Set(description, CUBLASLT_MATMUL_DESC_TRANSA, operation(product_.transpose_a)));
  RETURN_IF_ERROR(Set(description, CUBLASLT_MATMUL_DESC_TRANSB, operation(product_.transpose_b)));
  RETURN_IF_ERROR(DescribeEpilogue());
  ASSIGN_OR_RETURN(a_, CreateLayout(product_.a()));
  ASSIGN_OR_RETURN(b_, CreateLayout(product_.b()));
  ASSIGN_OR_RETURN(d_, CreateLayout(product_.d()));
  return absl::OkStatus();
}

absl::Status MatmulPlan::DescribeEpilogue() {
  if (product_.epilogue == Epilogue::kNone) return absl::OkStatus();
  RETURN_IF_ERROR(Set(description_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE,
                      static_cast<uint32_t>(LibraryEpilogue(product_.epilogue))));
  RETURN_IF_ERROR(Set(description_.get(), CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
                      static_cast<int32_t>(LibraryType(product_.result_type))));
  if (product_.epilogue == Epilogue::kGeluAuxBias) {
    RETURN_IF_ERROR(
        Set(description_.get(), CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t{product_.m}));
  }
  // The library infers from these how well the addresses of Run will be aligned.
  const auto least_aligned = reinterpret_cast<void*>(static_cast<uintptr_t>(kMatmulAlignment));
  return SetPointers({.bias = least_aligned, .aux = least_aligned});
}

absl::StatusOr<MatmulPlan::Layout> MatmulPlan::CreateLayout(const StoredMatrix& matrix) {
  cublasLtMatrixLayout_t layout = nullptr;
  RETURN_IF_ERROR(CublasStatus(
      cublasLtMatrixLayoutCreate(&layout, LibraryType(matrix.type),
                                 static_cast<uint64_t>(matrix.rows),
                                 static_cast<uint64_t>(matrix.columns), matrix.leading),
      "cublasLtMatrixLayoutCreate"));
  return Layout(layout);
}

absl::StatusOr<MatmulPlan::Preference> MatmulPlan::CreatePreference() const {
  cublasLtMatmulPreference_t preference = nullptr;
  RETURN_IF_ERROR(
      CublasStatus(cublasLtMatmulPreferenceCreate(&preference), "cublasLtMatmulPreferenceCreate"));
  Preference owner(preference);
  RETURN_IF_ERROR(Set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                      static_cast<uint64_t>(workspace_bytes_)));
  RETURN_IF_ERROR(Set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions));
  for (const auto attribute :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    RETURN_IF_ERROR(Set(preference, attribute, static_cast<uint32_t>(kMatmulAlignment)));
  }
  return owner;
}

// The heuristic only estimates, even the workspace.
absl::Status MatmulPlan::Check(const CandidateAlgorithm& candidate) const {
  if ((candidate.algorithm.reduction & ~kReductions) != 0) {
    return absl::UnimplementedError("it does not sum in float32 in a fixed order");
  }
  cublasLtMatmulHeuristicResult_t result = {};
  RETURN_IF_ERROR(
      AlgorithmStatus(cublasLtMatmulAlgoCheck(handle_, description_.get(), a_.get(), b_.get(),
                                              d_.get(), d_.get(), &candidate.library, &result),
                      "cublasLtMatmulAlgoCheck"));
  if (result.workspaceSize > static_cast<size_t>(workspace_bytes_)) {
    return absl::UnimplementedError(absl::StrCat("it needs ", result.workspaceSize,
                                                 " bytes of workspace, and ", workspace_bytes_,
                                                 " are planned"));
  }
  return absl::OkStatus();
}

absl::StatusOr<MatmulPlan::CandidateAlgorithm> MatmulPlan::Rebuild(
    const Algorithm& algorithm) const {
  CandidateAlgorithm candidate = {algorithm, {}};
  const cudaDataType_t operand_type = LibraryType(product_.operand_type);
  const cudaDataType_t result_type = LibraryType(product_.result_type);
  RETURN_IF_ERROR(AlgorithmStatus(
      cublasLtMatmulAlgoInit(handle_, compute_type_, kScaleType, operand_type, operand_type,
                             result_type, result_type, algorithm.id, &candidate.library),
      "cublasLtMatmulAlgoInit"));
  RETURN_IF_ERROR(ForEachAttribute(
      algorithm, [&candidate](cublasLtMatmulAlgoConfigAttributes_t attribute, const auto& value) {
        return Set(candidate.library, attribute, value);
      }));
  RETURN_IF_ERROR(Check(candidate));
  return candidate;
}

absl::StatusOr<std::vector<MatmulPlan::CandidateAlgorithm>> MatmulPlan::Candidates() const {
  ASSIGN_OR_RETURN(const Preference preference, CreatePreference());
  std::array<cublasLtMatmulHeuristicResult_t, kMaxCandidates> results = {};
  int found = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
      handle_, description_.get(), a_.get(), b_.get(), d_.get(), d_.get(), preference.get(),
      kMaxCandidates, results.data(), &found);
  std::vector<CandidateAlgorithm> candidates;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return candidates;
  RETURN_IF_ERROR(CublasStatus(status, "cublasLtMatmulAlgoGetHeuristic"));
  for (int i = 0; i < found; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = results[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS) continue;
    ASSIGN_OR_RETURN(const Algorithm algorithm, Identify(result.algo));
    const CandidateAlgorithm candidate = {algorithm, result.algo};
    const absl::Status check = Check(candidate);
    if (absl::IsUnimplemented(check)) continue;
    RETURN_IF_ERROR(check);
    // An algorithm with a property that no attribute describes could not be identified in a tuning
    // file.
    const bool is_known =
        std::any_of(candidates.begin(), candidates.end(),
                    [&](const CandidateAlgorithm& other) { return other.algorithm == algorithm; });
    if (!is_known) candidates.push_back(candidate);
  }
  return candidates;
}

absl::Status MatmulPlan::SetPointers(const Operands& operands) const {
  const auto set = [this](cublasLtMatmulDescAttributes_t attribute, const void* address) {
    return Set(description_.get(), attribute, address);
  };
  switch (product_.epilogue) {
    case Epilogue::kNone:
      return absl::OkStatus();
    case Epilogue::kBias:
    case Epilogue::kReluBias:
      return set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
    case Epilogue::kGeluAuxBias:
      RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, operands.aux));
      return set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, operands.bias);
  }
  return absl::OkStatus();
}

absl::Status MatmulPlan::Run(cudaStream_t stream, const Operands& operands,
                             std::byte* workspace) const {
  for (const void* address :
       {operands.a, operands.b, static_cast<const void*>(operands.d), operands.bias,
        operands.addend, static_cast<const void*>(operands.aux),
        static_cast<const void*>(workspace)}) {
    if (IsAligned(address)) continue;
    return absl::InvalidArgumentError(absl::StrCat("product ", product_.ToString(), ": address ",
                                                   absl::Hex(address), " is not a multiple of ",
                                                   kMatmulAlignment));
  }
  RETURN_IF_ERROR(SetPointers(operands));
  const float alpha = 1.0F;
  const float beta = operands.addend == nullptr ? 0.0F : 1.0F;
  const void* const c = operands.addend == nullptr ? operands.d : operands.addend;
  IssueCount::Add(2);  // the kernel, and one that adds the parts
  const cublasStatus_t status =
      cublasLtMatmul(handle_, description_.get(), &alpha, operands.a, a_.get(), operands.b,
                     b_.get(), &beta, c, d_.get(), operands.d, d_.get(), &candidate_.library,
                     workspace, static_cast<size_t>(workspace_bytes_), stream);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) {
    return absl::UnimplementedError(
        absl::StrCat("cublasLtMatmul refuses its own algorithm for ", product_.ToString()));
  }
  return CublasStatus(status, "cublasLtMatmul");
}

}  // namespace stagecoach::kernels
