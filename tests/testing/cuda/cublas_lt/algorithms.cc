#include "tests/testing/cuda/cublas_lt/algorithms.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>

#include "tests/testing/cuda/cublas_lt/description.h"
#include "tests/testing/cuda/cublas_lt/faults.h"

namespace stagecoach::testing::cuda {
namespace {

static_assert(sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));
constexpr uint64_t kMagic = 0x5354414745434F41;

// Two of these sum in a different order, one for each way to split k.
constexpr std::array<Algorithm, 6> kAlgorithms = {{
    {.id = 66, .tile = 20, .stages = 12, .split_k = 1, .custom_option = 5, .cluster = 2},
    {.id = 67,
     .tile = 23,
     .stages = 36,
     .split_k = 1,
     .swizzle = 1,
     .cluster = 3,
     .order = SumOrder::kDescending},
    {.id = 21,
     .tile = 20,
     .stages = 15,
     .split_k = 2,
     .reduction = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE,
     .inner_shape = 1},
    {.id = 31,
     .tile = 18,
     .stages = 15,
     .split_k = 3,
     .reduction = CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE,
     .inner_shape = 1},
    {.id = 6,
     .tile = 15,
     .stages = 8,
     .split_k = 4,
     .reduction = CUBLASLT_REDUCTION_SCHEME_INPLACE},
    {.id = 0, .tile = 11, .split_k = 1, .order = SumOrder::kEvenThenOdd, .any_alignment = true},
}};

// Returns all algorithms of the library, in the order in which the heuristic offers them for
// `problem`.
std::vector<Algorithm> AlgorithmsFor(uint64_t problem, const BlasFaults& faults) {
  std::vector<Algorithm> algorithms;
  for (size_t i = 0; i < kAlgorithms.size(); ++i) {
    algorithms.push_back(kAlgorithms[(i + problem) % kAlgorithms.size()]);
  }
  for (int i = 0; i < faults.further; ++i) {
    algorithms.push_back(kAlgorithms[0]);
    algorithms.back().id = kFirstFurtherId + i;
  }
  return algorithms;
}

// Products with equal numbers can be computed by the same algorithm.
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

uint64_t TypesOf(const Product& product) {
  uint64_t types = product.tf32 ? 1 : 0;
  for (const Matrix* matrix : {&product.a, &product.b, &product.c, &product.d}) {
    types = types << 8 | static_cast<uint64_t>(matrix->type);
  }
  return types;
}

bool HaveSameAttributes(const Algorithm& a, const Algorithm& b) {
  const auto attributes = [](const Algorithm& algorithm) {
    return std::tie(algorithm.id, algorithm.tile, algorithm.stages, algorithm.split_k,
                    algorithm.reduction, algorithm.swizzle, algorithm.custom_option,
                    algorithm.inner_shape, algorithm.cluster);
  };
  return attributes(a) == attributes(b);
}

// Returns the largest alignment that can be requested for a null pointer, whose address is not yet
// known.
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
    return !UsesAux(product.epilogue) && (product.epilogue & kBiasGradientBit) == 0;
  }
  const uint32_t alignment = std::min({preference.alignment_a, preference.alignment_b,
                                       preference.alignment_c, preference.alignment_d});
  return alignment >= kVectorBytes && HasVectorLines(product.a) && HasVectorLines(product.b) &&
         HasVectorLines(product.c) && HasVectorLines(product.d);
}

}  // namespace

cublasLtMatmulAlgo_t Pack(const Algorithm& algorithm) {
  cublasLtMatmulAlgo_t packed{};
  std::memcpy(&packed, &algorithm, sizeof(algorithm));
  return packed;
}

std::optional<Algorithm> Unpack(const cublasLtMatmulAlgo_t& packed) {
  Algorithm algorithm;
  std::memcpy(static_cast<void*>(&algorithm), &packed, sizeof(algorithm));
  if (algorithm.magic != kMagic) return std::nullopt;
  return algorithm;
}

cublasStatus_t UnpackFor(const Product& product, const cublasLtMatmulAlgo_t& packed,
                         Algorithm& algorithm) {
  const std::optional<Algorithm> unpacked = Unpack(packed);
  if (!unpacked.has_value()) return CUBLAS_STATUS_INVALID_VALUE;
  algorithm = *unpacked;
  const uint64_t problem = ProblemOf(product);
  if (!algorithm.by_id) {
    return algorithm.problem == problem ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
  }
  if (algorithm.problem != TypesOf(product)) return CUBLAS_STATUS_INVALID_VALUE;
  const BlasFaults faults = blas_faults();
  for (const Algorithm& known : AlgorithmsFor(problem, faults)) {
    if (!HaveSameAttributes(known, algorithm)) continue;
    if (faults.lacks != nullptr && faults.lacks(product)) break;
    if (!Supports(known, product, MatmulPreference())) break;
    algorithm = known;
    // Nothing is known about the alignment of the bias.
    algorithm.bias_alignment = UsesBias(product.epilogue) ? kVectorBytes : 1;
    return CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_NOT_SUPPORTED;
}

std::optional<Algorithm> WithId(int32_t id, const Product& types) {
  for (const Algorithm& known : AlgorithmsFor(/*problem=*/0, blas_faults())) {
    if (known.id != id) continue;
    return Algorithm{
        .id = id, .split_k = 1, .by_id = true, .problem = TypesOf(types), .magic = kMagic};
  }
  return std::nullopt;
}

Product With(Product product, const Algorithm& algorithm) {
  product.order = algorithm.order;
  product.split_k = algorithm.split_k;
  product.reduction = static_cast<cublasLtReductionScheme_t>(algorithm.reduction);
  return product;
}

std::vector<Algorithm> Candidates(const Product& product, const MatmulPreference& preference) {
  std::vector<Algorithm> candidates;
  const BlasFaults faults = blas_faults();
  if (faults.lacks != nullptr && faults.lacks(product)) return candidates;
  const uint64_t problem = ProblemOf(product);
  for (Algorithm& algorithm : AlgorithmsFor(problem, faults)) {
    if (faults.unoffered.contains(algorithm.id)) continue;
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

std::optional<Algorithm> BestFor(const Product& product, size_t workspace_bytes) {
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

bool IsAligned(const void* address, uint64_t bytes) {
  return reinterpret_cast<uintptr_t>(address) % bytes == 0;
}

bool AreAligned(const Product& product, const Algorithm& algorithm) {
  for (const Matrix* matrix : {&product.a, &product.b, &product.c, &product.d}) {
    const int64_t bytes = algorithm.any_alignment ? matrix->element_bytes() : kVectorBytes;
    if (!IsAligned(matrix->data, static_cast<uint64_t>(bytes))) return false;
  }
  if (UsesAux(product.epilogue) && !IsAligned(product.aux.data, kVectorBytes)) return false;
  return !UsesBias(product.epilogue) || IsAligned(product.bias.data, algorithm.bias_alignment);
}

}  // namespace stagecoach::testing::cuda
