#include <cublasLt.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "tests/testing/cuda/cublas_lt_description.h"
#include "tests/testing/cuda/cublas_lt_objects.h"
#include "tests/testing/cuda/cublas_lt_product.h"
#include "tests/testing/cuda/stand_in.h"

// Products. What the documentation of cublasLtMatmul leaves open is refused here, so that nobody
// relies on it: among others, aux matrices and bias gradients of operands that are not 16-byte
// aligned, and bias gradients with alpha != 1.
namespace stagecoach::testing::cuda {
namespace {

constexpr int kVectorBytes = 16;

// What is inside of a cublasLtMatmulAlgo_t.
struct Algorithm {
  int32_t id;
  uint32_t tile;
  uint32_t stages;
  int32_t split_k;
  uint32_t reduction;
  uint16_t inner_shape;
  uint16_t cluster;
  SumOrder order;
  bool any_alignment;      // else operands, and rows and columns within them, begin at 16 bytes
  uint8_t bias_alignment;  // what the bias had when the algorithm was asked for
  uint64_t problem;        // for which it was asked for
  uint64_t magic;          // and that it was

  bool operator==(const Algorithm&) const = default;
};
static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
constexpr uint64_t kMagic = 0x5354414745434F41;

// Two that sum in another order than the usual one, one of each way to split k.
constexpr std::array<Algorithm, 6> kAlgorithms = {{
    {66, 20, 12, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0, 2, SumOrder::kAscending, false, 0, 0, 0},
    {67, 23, 36, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0, 3, SumOrder::kDescending, false, 0, 0, 0},
    {21, 20, 15, 2, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, 1, 0, SumOrder::kAscending, false, 0, 0,
     0},
    {31, 18, 15, 3, CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE, 1, 0, SumOrder::kAscending, false, 0, 0,
     0},
    {6, 15, 8, 4, CUBLASLT_REDUCTION_SCHEME_INPLACE, 0, 0, SumOrder::kAscending, false, 0, 0, 0},
    {0, 11, 0, 1, CUBLASLT_REDUCTION_SCHEME_NONE, 0, 0, SumOrder::kEvenThenOdd, true, 0, 0, 0},
}};

// Two products with equal numbers can be computed by the same algorithm.
uint64_t ProblemOf(const Product& product) {
  uint64_t hash = 0xCBF29CE484222325;
  const auto mix = [&hash](int64_t value) {
    hash = (hash ^ static_cast<uint64_t>(value)) * 0x9E3779B97F4A7C15;
    hash ^= hash >> 29;
  };
  for (const Matrix* matrix : {&product.a, &product.b, &product.c, &product.d}) {
    mix(matrix->type);
    mix(matrix->rows);
    mix(matrix->columns);
    mix(matrix->leading);
    mix(matrix->row_major ? 1 : 0);
  }
  mix(product.transpose_a ? 1 : 0);
  mix(product.transpose_b ? 1 : 0);
  mix(product.tf32 ? 1 : 0);
  mix(product.epilogue);
  mix(UsesAux(product.epilogue) ? product.aux.leading : 0);
  return hash;
}

bool IsAligned(const void* address, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

// Of a null pointer, whose address is yet to be told, the most that can be asked for.
uint8_t AlignmentOf(const void* address) {
  for (uint8_t bytes = kVectorBytes; bytes > 1; bytes /= 2) {
    if (IsAligned(address, bytes)) return bytes;
  }
  return 1;
}

bool HasVectorLines(const Matrix& matrix) {
  return matrix.leading * matrix.element_bytes() % kVectorBytes == 0;
}

bool Supports(const Algorithm& algorithm, const Product& product,
              const MatmulPreference& preference) {
  if (algorithm.reduction == CUBLASLT_REDUCTION_SCHEME_INPLACE &&
      product.epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    return false;
  }
  if (algorithm.any_alignment) {
    return !UsesAux(product.epilogue) && (product.epilogue & kBiasGradientBits) == 0;
  }
  const uint32_t alignment = std::min({preference.alignment_a, preference.alignment_b,
                                       preference.alignment_c, preference.alignment_d});
  return alignment >= kVectorBytes && HasVectorLines(product.a) && HasVectorLines(product.b) &&
         HasVectorLines(product.c) && HasVectorLines(product.d);
}

Product With(Product product, const Algorithm& algorithm) {
  product.order = algorithm.order;
  product.split_k = algorithm.split_k;
  product.reduction = static_cast<cublasLtReductionScheme_t>(algorithm.reduction);
  return product;
}

// The algorithms that may be used, best first; which is best depends on the problem alone.
std::vector<Algorithm> Candidates(const Product& product, const MatmulPreference& preference) {
  std::vector<Algorithm> candidates;
  const uint64_t problem = ProblemOf(product);
  for (size_t i = 0; i < kAlgorithms.size(); ++i) {
    Algorithm algorithm = kAlgorithms[(i + problem) % kAlgorithms.size()];
    if (algorithm.reduction != CUBLASLT_REDUCTION_SCHEME_NONE &&
        (algorithm.reduction & preference.reduction_mask) == 0) {
      continue;
    }
    const int64_t workspace_bytes = WorkspaceBytes(With(product, algorithm));
    if (static_cast<uint64_t>(workspace_bytes) > preference.max_workspace_bytes) continue;
    if (!Supports(algorithm, product, preference)) continue;
    algorithm.bias_alignment =
        UsesBias(product.epilogue) ? AlignmentOf(product.bias.data) : uint8_t{1};
    algorithm.problem = problem;
    algorithm.magic = kMagic;
    candidates.push_back(algorithm);
  }
  return candidates;
}

Algorithm Unpack(const cublasLtMatmulAlgo_t& packed) {
  Algorithm algorithm;
  std::memcpy(static_cast<void*>(&algorithm), &packed, sizeof(algorithm));
  return algorithm;
}

cublasLtMatmulAlgo_t Pack(const Algorithm& algorithm) {
  cublasLtMatmulAlgo_t packed{};
  std::memcpy(&packed, &algorithm, sizeof(algorithm));
  return packed;
}

struct Range {
  const char* name;
  const std::byte* begin;
  int64_t bytes;
  bool written;

  bool Overlaps(const Range& other) const {
    return begin < other.begin + other.bytes && other.begin < begin + bytes;
  }
};

// What the product reads and writes.
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
        {"the bias", product.bias.data, product.bias.bytes(), (epilogue & kBiasGradientBits) != 0});
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

// The real library would compute something, or the GPU would fault: nothing that a test could see
// for what it is.
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

// Whether the addresses are such as `algorithm` was asked for.
bool AreAligned(const Product& product, const Algorithm& algorithm) {
  for (const Matrix* matrix : {&product.a, &product.b, &product.c, &product.d}) {
    const int64_t bytes = algorithm.any_alignment ? matrix->element_bytes() : kVectorBytes;
    if (!IsAligned(matrix->data, static_cast<uint64_t>(bytes))) return false;
  }
  if (UsesAux(product.epilogue) && !IsAligned(product.aux.data, kVectorBytes)) return false;
  return !UsesBias(product.epilogue) || IsAligned(product.bias.data, algorithm.bias_alignment);
}

// The algorithm to be used: the one given, or the best that the addresses and the workspace allow.
std::optional<Algorithm> Choose(const Product& product, const cublasLtMatmulAlgo_t* given,
                                size_t workspace_bytes) {
  if (given != nullptr) {
    const Algorithm algorithm = Unpack(*given);
    if (algorithm.magic != kMagic || algorithm.problem != ProblemOf(product)) return std::nullopt;
    return algorithm;
  }
  MatmulPreference preference;
  preference.max_workspace_bytes = workspace_bytes;
  preference.alignment_a = AlignmentOf(product.a.data);
  preference.alignment_b = AlignmentOf(product.b.data);
  preference.alignment_c = AlignmentOf(product.c.data);
  preference.alignment_d = AlignmentOf(product.d.data);
  const std::vector<Algorithm> candidates = Candidates(product, preference);
  if (candidates.empty()) return std::nullopt;
  return candidates.front();
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
  if ((product.epilogue & kBiasGradientBits) != 0 && product.alpha != 1.0F) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const std::optional<Algorithm> algorithm = Choose(product, algo, workspace_bytes);
  if (!algorithm.has_value()) {
    return algo == nullptr ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!AreAligned(product, *algorithm)) return CUBLAS_STATUS_INVALID_VALUE;
  product = With(product, *algorithm);
  product.workspace = static_cast<std::byte*>(workspace);
  if (WorkspaceBytes(product) > static_cast<int64_t>(workspace_bytes) ||
      !IsAligned(workspace, kVectorBytes)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  ExpectMemory(product, GpuOfStream(stream));
  const cudaError_t error = Enqueue(
      stream, {.name = "cublasLtMatmul", .ready = nullptr, .run = [product] { Compute(product); }});
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

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attr,
                                                    void* buf, size_t sizeInBytes,
                                                    size_t* sizeWritten) {
  stand_in::Progress();
  if (stand_in::MustFail("cublasLtMatmulAlgoConfigGetAttribute")) {
    return CUBLAS_STATUS_INTERNAL_ERROR;
  }
  if (algo == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  const stand_in::Algorithm algorithm = stand_in::Unpack(*algo);
  if (algorithm.magic != stand_in::kMagic) return CUBLAS_STATUS_INVALID_VALUE;
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
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      return give(uint32_t{0});
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
