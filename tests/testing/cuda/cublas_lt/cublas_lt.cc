#include <cublasLt.h>

#include <cstring>
#include <functional>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/cuda/cublas_lt/algorithms.h"
#include "tests/testing/cuda/cublas_lt/description.h"
#include "tests/testing/cuda/cublas_lt/faults.h"
#include "tests/testing/cuda/cublas_lt/objects.h"
#include "tests/testing/cuda/cublas_lt/product.h"
#include "tests/testing/cuda/stand_in.h"

// Products. Cases that the documentation of cublasLtMatmul leaves open are refused here, so that no
// code relies on them: among others, aux matrices and bias gradients of matrices that are not
// 16-byte aligned, and bias gradients with alpha != 1.
namespace stagecoach::testing::cuda {
namespace {

struct Range {
  const char* name;
  const std::byte* begin;
  int64_t bytes;
  bool written;

  bool Overlaps(const Range& other) const {
    return begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

// Returns the memory that the product reads and writes.
std::vector<Range> RangesOf(const Product& product) {
  std::vector<Range> ranges = {{"D", product.d.data, product.d.bytes(), true},
                               {"A", product.a.data, product.a.bytes(), false},
                               {"B", product.b.data, product.b.bytes(), false}};
  if (product.beta != 0.0F && product.c.data != product.d.data) {
    ranges.push_back({"C", product.c.data, product.c.bytes(), false});
  }
  const uint32_t epilogue = product.epilogue;
  if (UsesBias(epilogue)) {
    ranges.push_back(
        {"the bias", product.bias.data, product.bias.bytes(), (epilogue & kBiasGradientBit) != 0});
  }
  if (UsesAux(epilogue)) {
    const bool forward = (epilogue & (CUBLASLT_EPILOGUE_RELU | CUBLASLT_EPILOGUE_GELU)) != 0;
    const int64_t bytes =
        UsesMask(epilogue) ? product.aux.leading * product.n / 8 : product.aux.bytes();
    ranges.push_back({"aux", product.aux.data, bytes, forward});
  }
  const int64_t workspace_bytes = WorkspaceBytes(product);
  if (workspace_bytes > 0) {
    ranges.push_back({"the workspace", product.workspace, workspace_bytes, true});
  }
  return ranges;
}

// Aborts where the real library would compute something, or the GPU would fault, so that a test
// could not recognize the mistake.
void ExpectMemory(const Product& product, int gpu) {
  const std::vector<Range> ranges = RangesOf(product);
  for (const Range& range : ranges) {
    STAGECOACH_CHECK(GpuOfMemory(range.begin, range.bytes) == gpu,
                     absl::StrCat("cublasLtMatmul: ", range.name, " (", range.bytes,
                                  " bytes) is not in memory of the stream's GPU"));
    for (const Range& other : ranges) {
      STAGECOACH_CHECK(&other == &range || !range.written || !range.Overlaps(other),
                       absl::StrCat("cublasLtMatmul: ", range.name, " overlaps ", other.name));
    }
  }
}

// Includes the workspace that the heuristic does not know of.
size_t NeededWorkspaceBytes(const Product& product, const Algorithm& algorithm) {
  const BlasFaults faults = blas_faults();
  const auto more = faults.workspace_bytes.find(algorithm.id);
  return more == faults.workspace_bytes.end() ? static_cast<size_t>(WorkspaceBytes(product))
                                              : more->second;
}

std::function<void()> RunOf(const Product& product, const BlasFaults& faults, int32_t algorithm) {
  if (faults.wrong.contains(algorithm)) {
    return [product] {
      Compute(product);
      for (int64_t i = 0; i < product.m * product.n; ++i) {
        const int64_t row = i % product.m, column = i / product.m;
        product.d.Set(row, column, 0.9F * product.d.Get(row, column));
      }
    };
  }
  if (!faults.unsteady.contains(algorithm)) return [product] { Compute(product); };
  return [product] {
    static int64_t run = 0;  // operations run one at a time
    Compute(product);
    const float value = product.d.Get(0, 0);
    product.d.Set(0, 0, value + static_cast<float>(++run % 2));
  };
}

cublasStatus_t Launch(Product product, const cublasLtMatmulAlgo_t* algo, void* workspace,
                      size_t workspace_bytes, cudaStream_t stream) {
  for (const Matrix* matrix : {&product.a, &product.b, &product.c, &product.d}) {
    if (matrix->data == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (UsesBias(product.epilogue) && product.bias.data == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (UsesAux(product.epilogue) && product.aux.data == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (product.c.data == product.d.data && product.c.leading != product.d.leading) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if ((product.epilogue & kBiasGradientBit) != 0 && product.alpha != 1.0F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  Algorithm algorithm;
  if (algo == nullptr) {
    const std::optional<Algorithm> best = BestFor(product, workspace_bytes);
    if (!best.has_value()) return CUBLAS_STATUS_NOT_SUPPORTED;
    algorithm = *best;
  } else {
    const cublasStatus_t status = UnpackFor(product, *algo, algorithm);
    if (status != CUBLAS_STATUS_SUCCESS) return status;
  }
  const BlasFaults faults = blas_faults();
  if (faults.refused.contains(algorithm.id)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (faults.failing.contains(algorithm.id)) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (!AreAligned(product, algorithm)) return CUBLAS_STATUS_INVALID_VALUE;
  product = With(product, algorithm);
  product.workspace = static_cast<std::byte*>(workspace);
  if (NeededWorkspaceBytes(product, algorithm) > workspace_bytes ||
      !IsAligned(workspace, kVectorBytes)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  ExpectMemory(product, GpuOfStream(stream));
  const auto extra = faults.extra_ns.find(algorithm.id);
  const int64_t extra_ns =
      (extra == faults.extra_ns.end() ? 0 : extra->second) +
      (product.epilogue == CUBLASLT_EPILOGUE_DEFAULT ? 0 : faults.epilogue_extra_ns);
  const cudaError_t error = Enqueue(stream, {.name = "cublasLtMatmul",
                                             .ready = nullptr,
                                             .run = RunOf(product, faults, algorithm.id),
                                             .extra_ns = extra_ns});
  return error == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

template <typename T>
cublasStatus_t Give(T value, void* buffer, size_t bytes, size_t* written) {
  if (written != nullptr) *written = sizeof(value);
  if (bytes == 0) return written == nullptr ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_SUCCESS;
  if (buffer == nullptr || bytes != sizeof(value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(buffer, &value, sizeof(value));
  return CUBLAS_STATUS_SUCCESS;
}

template <typename T>
cublasStatus_t Take(T& value, const void* buffer, size_t bytes) {
  if (buffer == nullptr || bytes != sizeof(value)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&value, buffer, sizeof(value));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t SetAttribute(Algorithm& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute,
                            const void* buffer, size_t bytes) {
  const auto take = [buffer, bytes](auto& value) { return Take(value, buffer, bytes); };
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:  // read-only
      return CUBLAS_STATUS_INVALID_VALUE;
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      return take(algorithm.tile);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      return take(algorithm.split_k);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      return take(algorithm.reduction);
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
      return take(algorithm.swizzle);
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      return take(algorithm.custom_option);
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
      return take(algorithm.stages);
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
      return take(algorithm.inner_shape);
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
      return take(algorithm.cluster);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

}  // namespace
}  // namespace stagecoach::testing::cuda

namespace stand_in = stagecoach::testing::cuda;

extern "C" {

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t operationDesc, cublasLtMatrixLayout_t Adesc,
    cublasLtMatrixLayout_t Bdesc, cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
    cublasLtMatmulPreference_t preference, int requestedAlgoCount,
    cublasLtMatmulHeuristicResult_t heuristicResultsArray[], int* returnAlgoCount) {
  stand_in::Progress();
  if (stand_in::MustFail("cublasLtMatmulAlgoGetHeuristic")) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (stand_in::Find(lightHandle) == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const stand_in::MatmulPreference* const wanted = stand_in::Find(preference);
  if (requestedAlgoCount <= 0 || heuristicResultsArray == nullptr || returnAlgoCount == nullptr ||
      wanted == nullptr) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  *returnAlgoCount = 0;
  const auto [status, product] =
      stand_in::Describe(stand_in::Find(operationDesc), {Adesc, Bdesc, Cdesc, Ddesc});
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (wanted->search_mode != CUBLASLT_SEARCH_BEST_FIT) return CUBLAS_STATUS_NOT_SUPPORTED;
  const std::vector<stand_in::Algorithm> candidates = stand_in::Candidates(product, *wanted);
  for (const stand_in::Algorithm& algorithm : candidates) {
    if (*returnAlgoCount == requestedAlgoCount) break;
    cublasLtMatmulHeuristicResult_t& result = heuristicResultsArray[(*returnAlgoCount)++];
    result = {};
    result.algo = stand_in::Pack(algorithm);
    result.workspaceSize =
        static_cast<size_t>(stand_in::WorkspaceBytes(stand_in::With(product, algorithm)));
    result.state = CUBLAS_STATUS_SUCCESS;
    result.wavesCount = 1.0F;
  }
  return candidates.empty() ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t lightHandle,
                                       cublasLtMatmulDesc_t operationDesc,
                                       cublasLtMatrixLayout_t Adesc, cublasLtMatrixLayout_t Bdesc,
                                       cublasLtMatrixLayout_t Cdesc, cublasLtMatrixLayout_t Ddesc,
                                       const cublasLtMatmulAlgo_t* algo,
                                       cublasLtMatmulHeuristicResult_t* result) {
  stand_in::Progress();
  if (stand_in::MustFail("cublasLtMatmulAlgoCheck")) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (stand_in::Find(lightHandle) == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (algo == nullptr || result == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const auto [status, product] =
      stand_in::Describe(stand_in::Find(operationDesc), {Adesc, Bdesc, Cdesc, Ddesc});
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  stand_in::Algorithm algorithm;
  const cublasStatus_t unpacked = stand_in::UnpackFor(product, *algo, algorithm);
  if (unpacked != CUBLAS_STATUS_SUCCESS) return unpacked;
  if (stand_in::blas_faults().refused.contains(algorithm.id)) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize =
      stand_in::NeededWorkspaceBytes(stand_in::With(product, algorithm), algorithm);
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1.0F;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoInit(cublasLtHandle_t lightHandle, cublasComputeType_t computeType,
                                      cudaDataType_t scaleType, cudaDataType_t Atype,
                                      cudaDataType_t Btype, cudaDataType_t Ctype,
                                      cudaDataType_t Dtype, int algoId,
                                      cublasLtMatmulAlgo_t* algo) {
  stand_in::Progress();
  if (stand_in::MustFail("cublasLtMatmulAlgoInit")) return CUBLAS_STATUS_INTERNAL_ERROR;
  if (stand_in::Find(lightHandle) == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (algo == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  stand_in::Product types;
  types.a.type = Atype;
  types.b.type = Btype;
  types.c.type = Ctype;
  types.d.type = Dtype;
  types.tf32 = computeType == CUBLAS_COMPUTE_32F_FAST_TF32;
  stand_in::MatmulDesc desc;
  desc.compute_type = static_cast<int32_t>(computeType);
  desc.scale_type = static_cast<int32_t>(scaleType);
  const cublasStatus_t status = stand_in::CheckTypes(desc, types);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const std::optional<stand_in::Algorithm> algorithm = stand_in::WithId(algoId, types);
  if (!algorithm.has_value()) return CUBLAS_STATUS_INVALID_VALUE;
  *algo = stand_in::Pack(*algorithm);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr,
                                                    const void* buf, size_t sizeInBytes) {
  stand_in::Progress();
  if (stand_in::MustFail("cublasLtMatmulAlgoConfigSetAttribute")) {
    return CUBLAS_STATUS_INTERNAL_ERROR;
  }
  if (algo == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  std::optional<stand_in::Algorithm> algorithm = stand_in::Unpack(*algo);
  // An algorithm that the heuristic offers must be used unchanged.
  if (!algorithm.has_value() || !algorithm->by_id) return CUBLAS_STATUS_INVALID_VALUE;
  const cublasStatus_t status = stand_in::SetAttribute(*algorithm, attr, buf, sizeInBytes);
  if (status == CUBLAS_STATUS_SUCCESS) *algo = stand_in::Pack(*algorithm);
  return status;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr,
                                                    void* buf, size_t sizeInBytes,
                                                    size_t* sizeWritten) {
  stand_in::Progress();
  if (stand_in::MustFail("cublasLtMatmulAlgoConfigGetAttribute")) {
    return CUBLAS_STATUS_INTERNAL_ERROR;
  }
  if (algo == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const std::optional<stand_in::Algorithm> found = stand_in::Unpack(*algo);
  if (!found.has_value()) return CUBLAS_STATUS_INVALID_VALUE;
  const stand_in::Algorithm& algorithm = *found;
  const auto give = [buf, sizeInBytes, sizeWritten](auto value) {
    return stand_in::Give(value, buf, sizeInBytes, sizeWritten);
  };
  switch (attr) {
    case CUBLASLT_ALGO_CONFIG_ID:
      return give(algorithm.id);
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      return give(algorithm.tile);
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      return give(algorithm.split_k);
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      return give(algorithm.reduction);
    case CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING:
      return give(algorithm.swizzle);
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      return give(algorithm.custom_option);
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
      return give(algorithm.stages);
    case CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID:
      return give(algorithm.inner_shape);
    case CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID:
      return give(algorithm.cluster);
  }
  return CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t lightHandle, cublasLtMatmulDesc_t computeDesc,
                              const void* alpha, const void* A, cublasLtMatrixLayout_t Adesc,
                              const void* B, cublasLtMatrixLayout_t Bdesc, const void* beta,
                              const void* C, cublasLtMatrixLayout_t Cdesc, void* D,
                              cublasLtMatrixLayout_t Ddesc, const cublasLtMatmulAlgo_t* algo,
                              void* workspace, size_t workspaceSizeInBytes, cudaStream_t stream) {
  stand_in::Progress();
  if (stand_in::MustFail("cublasLtMatmul")) return CUBLAS_STATUS_EXECUTION_FAILED;
  const cublasLtContext* const handle = stand_in::Find(lightHandle);
  if (handle == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (alpha == nullptr || beta == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  auto [status, product] =
      stand_in::Describe(stand_in::Find(computeDesc), {Adesc, Bdesc, Cdesc, Ddesc});
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (handle->gpu != stand_in::GpuOfStream(stream)) return CUBLAS_STATUS_ARCH_MISMATCH;
  const auto bytes_at = [](const void* address) {
    return static_cast<std::byte*>(const_cast<void*>(address));  // only D's are written
  };
  product.a.data = bytes_at(A);
  product.b.data = bytes_at(B);
  product.c.data = bytes_at(C);
  product.d.data = bytes_at(D);
  product.alpha = *static_cast<const float*>(alpha);
  product.beta = *static_cast<const float*>(beta);
  return stand_in::Launch(product, algo, workspace, workspaceSizeInBytes, stream);
}

}  // extern "C"
