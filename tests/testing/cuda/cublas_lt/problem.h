#ifndef STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_PROBLEM_H_
#define STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_PROBLEM_H_

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/cuda/stand_in.h"

// Products for the tests of cuBLASLt's stand-in, on the library's own objects.
namespace stagecoach::testing::cuda {

using Floats = std::vector<float>;
inline constexpr size_t kWorkspaceBytes = size_t{1} << 20;

// A stream, a handle, and device memory that is copied to and from.
class BlasBench {
 public:
  BlasBench();
  ~BlasBench();
  BlasBench(const BlasBench&) = delete;
  BlasBench& operator=(const BlasBench&) = delete;

  std::byte* Allocate(int64_t bytes);
  std::byte* Upload(const Floats& values, cudaDataType_t type);
  void Write(std::byte* memory, const Floats& values, cudaDataType_t type);
  Floats Read(const std::byte* memory, int64_t elements, cudaDataType_t type);
  void Wait() { EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess); }

  cudaStream_t stream = nullptr;
  cublasLtHandle_t handle = nullptr;

 private:
  static constexpr size_t kStagingBytes = size_t{1} << 20;
  void Copy(void* to, const void* from, int64_t bytes);
  std::byte* staging_ = nullptr;
  std::vector<void*> memory_;
};

// A product and its settings.
struct BlasCase {
  int64_t m = 8, n = 16, k = 24;
  bool transpose_a = false, transpose_b = false;
  bool row_major_a = false, row_major_b = false, row_major_d = false;
  cudaDataType_t operands = CUDA_R_32F, result = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  float alpha = 1.0F, beta = 0.0F;
  int64_t padding = 8;  // elements between lines
};

std::string NameOf(const BlasCase& c);

// A matrix in memory: its lines, with undefined contents between them.
struct StoredMatrix {
  int64_t rows = 0, columns = 0, leading = 0;
  bool row_major = false;
  cudaDataType_t type = CUDA_R_32F;
  Floats values;
  std::byte* memory = nullptr;

  int64_t elements() const { return leading * (row_major ? rows : columns); }
  size_t Index(int64_t row, int64_t column) const {
    return static_cast<size_t>(row_major ? row * leading + column : column * leading + row);
  }
  double At(int64_t row, int64_t column, bool transposed = false) const {
    return transposed ? values[Index(column, row)] : values[Index(row, column)];
  }
};

// The library's objects of a case, and its operands in memory.
class BlasProblem {
 public:
  BlasProblem(BlasBench& gpu, const BlasCase& of);
  ~BlasProblem();
  BlasProblem(const BlasProblem&) = delete;
  BlasProblem& operator=(const BlasProblem&) = delete;

  template <typename T>
  void Set(cublasLtMatmulDescAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof(value)),
              CUBLAS_STATUS_SUCCESS);
  }
  template <typename T>
  void SetPreference(cublasLtMatmulPreferenceAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
              CUBLAS_STATUS_SUCCESS);
  }

  std::vector<cublasLtMatmulHeuristicResult_t> Heuristic(
      cublasStatus_t expected = CUBLAS_STATUS_SUCCESS, int wanted = 16);

  // Calls cublasLtMatmulAlgoInit with the types of the case.
  cublasStatus_t Init(int32_t id, cublasLtMatmulAlgo_t& algo);

  // Calls cublasLtMatmulAlgoCheck. Sets `workspace_bytes` to the workspace that it needs.
  cublasStatus_t Check(const cublasLtMatmulAlgo_t& algo, size_t* workspace_bytes = nullptr);

  // Multiplies in place: C is D.
  cublasStatus_t Multiply(const cublasLtMatmulAlgo_t* algo,
                          size_t workspace_bytes = kWorkspaceBytes);

  // Returns D, column by column, without the gaps between its lines.
  Floats Result();

  bool MaskBit(int64_t row, int64_t column) const {
    const int64_t bit = row + column * mask_leading;
    return (mask_bytes[static_cast<size_t>(bit / 8)] >> (bit % 8) & 1) != 0;
  }

  BlasCase c;
  StoredMatrix a, b, d, bias, aux;
  int64_t mask_leading = 0;
  std::vector<uint8_t> mask_bytes;
  std::byte* mask = nullptr;
  std::byte* workspace = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t layout_a = nullptr, layout_b = nullptr, layout_d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;

 private:
  static cublasLtMatrixLayout_t MakeLayout(const StoredMatrix& stored);
  void UploadMask();

  BlasBench& gpu_;
};

// Returns CUBLASLT_ALGO_CONFIG_ID.
int32_t IdOf(const cublasLtMatmulAlgo_t& algo);

class CublasLt : public ::testing::Test {
 protected:
  CublasLt() { Reset({.delay = 0.2}); }
};

}  // namespace stagecoach::testing::cuda

#endif  // STAGECOACH_TESTS_TESTING_CUDA_CUBLAS_LT_PROBLEM_H_
