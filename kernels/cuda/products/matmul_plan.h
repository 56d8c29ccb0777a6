#ifndef STAGECOACH_KERNELS_CUDA_PRODUCTS_MATMUL_PLAN_H_
#define STAGECOACH_KERNELS_CUDA_PRODUCTS_MATMUL_PLAN_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/cuda/products/algorithm.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

// Products as cuBLASLt computes them. Its matrices are column-major, and the row-major (R, C)
// matrix of a tensor is its (C, R) matrix; so y = x w is stated as y^T = w^T x^T, with w and x as
// they lie in memory and without a transposition.
namespace stagecoach::kernels {

// The additional work of a product, in the same kernel.       D (m, n), bias (m)
enum class Epilogue : uint8_t {
  kNone,
  kBias,         // D = product + bias, one element of bias per row of D
  kReluBias,     // D = max(0, product + bias)
  kGeluAuxBias,  // aux = product + bias, D = gelu(aux) in the tanh form; m is a multiple of 8
};

// A matrix as it lies in memory: columns of `rows` elements, each `leading` elements after the
// previous one. The gaps between columns are neither read nor written.
struct StoredMatrix {
  int64_t rows = 1, columns = 1, leading = 1;
  DType type = DType::kFloat32;

  int64_t row_bytes() const { return rows * SizeOf(type); }
  int64_t leading_bytes() const { return leading * SizeOf(type); }
  // Returns the size from the first element to the end of the last.
  int64_t bytes() const { return (columns - 1) * leading_bytes() + row_bytes(); }
};

// D = op(A) op(B), or the sum with an addend.        op(A) (m, k)   op(B) (k, n)   D (m, n), aux
// (m, n) Column-major: A is (m, k), or (k, m) if it is transposed. Bias and aux are of D's type.
// Regular value type.
struct Product {
  bool transpose_a = false, transpose_b = false;
  int64_t m = 1, n = 1, k = 1;
  DType operand_type = DType::kFloat32;
  DType result_type = DType::kFloat32;
  Epilogue epilogue = Epilogue::kNone;
  // Leading dimensions. 0: no gaps between columns, which any epilogue but kNone requires.
  int64_t lda = 0, ldb = 0, ldd = 0;

  StoredMatrix a() const { return Stored(transpose_a, m, k, lda, operand_type); }
  StoredMatrix b() const { return Stored(transpose_b, k, n, ldb, operand_type); }
  StoredMatrix d() const { return Stored(false, m, n, ldd, result_type); }
  // Returns "A^T B bf16 768x64x3072 -> fp32, none"; leading dimensions other than 0 are appended:
  // ", ldb 50304".
  std::string ToString() const;

  friend bool operator==(const Product&, const Product&) = default;

 private:
  static StoredMatrix Stored(bool transposed, int64_t rows, int64_t columns, int64_t leading,
                             DType type) {
    if (transposed) std::swap(rows, columns);
    return {rows, columns, leading == 0 ? rows : leading, type};
  }
};

// Addresses of tensors and of workspaces of products are multiples of this.
inline constexpr int64_t kMatmulAlignment = 16;

// Returns the scratch that algorithms for the product may use, in bytes, a multiple of 256: a
// function of the product and of the generation of the GPU alone, so that plans of memory do not
// depend on the choice of algorithms. It is twice the operands and the result, so that it stays in
// proportion, and at most what NVIDIA recommends: 32 MiB from compute capability 9.0 on and 4 MiB
// before.
int64_t MatmulWorkspaceBytes(const Product& product, int compute_major);

// A product with everything that cuBLASLt needs to compute it. Not thread-safe: Run is called by
// one thread at a time.
class MatmulPlan {
 public:
  static constexpr int kMaxCandidates = 32;

  // An algorithm that could compute the product.
  struct CandidateAlgorithm {
    Algorithm algorithm;
    cublasLtMatmulAlgo_t library = {};
  };

  struct Operands {
    const void* a = nullptr;
    const void* b = nullptr;
    void* d = nullptr;
    const void* bias = nullptr;  // unless the epilogue is kNone
    void* aux = nullptr;         // for kGeluAuxBias
    // D = product + addend, which has the form of D, and may be D; null: nothing. Only with kNone.
    const void* addend = nullptr;
  };

  // Creates a plan without an algorithm. `handle` outlives it. Unimplemented: an extent that the
  // epilogue does not support.
  static absl::StatusOr<std::unique_ptr<MatmulPlan>> Create(cublasLtHandle_t handle,
                                                            const Product& product,
                                                            Precision precision,
                                                            int64_t workspace_bytes);

  // Returns at most kMaxCandidates algorithms, in the order of the library's estimated times: only
  // those that sum in float32, in a fixed order, in at most workspace_bytes() of workspace, and
  // that pass the library's own check. None if it does not have the product with its epilogue.
  absl::StatusOr<std::vector<CandidateAlgorithm>> Candidates() const;
  // Returns the algorithm with these attributes, whether or not the library would propose it.
  // Unimplemented, with the reason, if it does not meet the conditions of Candidates.
  absl::StatusOr<CandidateAlgorithm> Rebuild(const Algorithm& algorithm) const;
  void Use(const CandidateAlgorithm& candidate) { candidate_ = candidate; }

  // Issues the product to `stream`; never waits. InvalidArgument if an address is not a multiple of
  // kMatmulAlignment. `workspace` has workspace_bytes(). Unimplemented if the library refuses the
  // algorithm after all.
  absl::Status Run(cudaStream_t stream, const Operands& operands, std::byte* workspace) const;

  const Product& product() const { return product_; }
  const Algorithm& algorithm() const { return candidate_.algorithm; }
  const CandidateAlgorithm& candidate() const { return candidate_; }
  int64_t workspace_bytes() const { return workspace_bytes_; }

 private:
  template <auto kDestroy>
  struct Destroy {
    template <typename T>
    void operator()(T* object) const {
      static_cast<void>(kDestroy(object));
    }
  };
  using Description =
      std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>>;
  using Layout =
      std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
  using Preference =
      std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>>;

  MatmulPlan(cublasLtHandle_t handle, const Product& product, cublasComputeType_t compute_type,
             int64_t workspace_bytes)
      : handle_(handle),
        product_(product),
        compute_type_(compute_type),
        workspace_bytes_(workspace_bytes) {}

  absl::Status Describe();
  absl::Status DescribeEpilogue();
  static absl::StatusOr<Layout> CreateLayout(const StoredMatrix& matrix);
  absl::StatusOr<Preference> CreatePreference() const;
  // Returns Unimplemented if the library does not compute the product with `candidate` in
  // workspace_bytes(), or does not sum as Candidates requires.
  absl::Status Check(const CandidateAlgorithm& candidate) const;
  absl::Status SetPointers(const Operands& operands) const;

  const cublasLtHandle_t handle_;
  const Product product_;
  const cublasComputeType_t compute_type_;
  const int64_t workspace_bytes_;
  Description description_;
  Layout a_, b_, d_;
  CandidateAlgorithm candidate_;
};

}  // namespace stagecoach::kernels

#endif  // STAGECOACH_KERNELS_CUDA_PRODUCTS_MATMUL_PLAN_H_
