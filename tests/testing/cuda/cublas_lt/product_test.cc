#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <array>
#include <cmath>
#include <cstring>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/close_to.h"
#include "tests/testing/cuda/cublas_lt/expected.h"
#include "tests/testing/cuda/cublas_lt/problem.h"
#include "tests/testing/cuda/stand_in.h"

namespace stagecoach::testing::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

// Expects that every algorithm computes the product: D, bias gradient and aux are correct.
void ExpectRight(const BlasCase& c) {
  SCOPED_TRACE(NameOf(c));
  BlasBench gpu;
  BlasProblem p(gpu, c);
  const ExpectedProduct expected = Expect(p);
  const auto results = p.Heuristic();
  EXPECT_THAT(results, Not(IsEmpty()));
  for (const auto& result : results) {
    SCOPED_TRACE(IdOf(result.algo));
    gpu.Write(p.d.memory, p.d.values, p.d.type);
    ASSERT_EQ(p.Multiply(&result.algo, result.workspaceSize), CUBLAS_STATUS_SUCCESS);
    EXPECT_THAT(p.Result(), CloseTo(expected.values, expected.bounds));
    if (!expected.bias.empty()) {
      EXPECT_THAT(gpu.Read(p.bias.memory, p.bias.rows, c.result),
                  CloseTo(expected.bias, expected.bias_bounds));
    }
  }
}

struct Types {
  cudaDataType_t operands, result;
  cublasComputeType_t compute;
};
constexpr std::array<Types, 4> kTypes = {{{CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F},
                                          {CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32},
                                          {CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F},
                                          {CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F}}};

TEST_F(CublasLt, MultipliesInAllTypesTransposesAndOrders) {
  for (const Types& types : kTypes) {
    for (int way = 0; way < 16; ++way) {
      ExpectRight({.m = 13,
                   .n = 9,
                   .k = 21,
                   .transpose_a = (way & 1) != 0,
                   .transpose_b = (way & 2) != 0,
                   .row_major_a = (way & 4) != 0,
                   .row_major_b = (way & 8) != 0,
                   .operands = types.operands,
                   .result = types.result,
                   .compute = types.compute});
    }
  }
}

TEST_F(CublasLt, MultipliesAnyExtents) {
  for (const std::array<int64_t, 3>& extents :
       {std::array<int64_t, 3>{1, 1, 1}, {1, 7, 3}, {33, 1, 2}, {5, 64, 1}, {64, 5, 200}}) {
    for (const Types& types : kTypes) {
      ExpectRight({.m = extents[0],
                   .n = extents[1],
                   .k = extents[2],
                   .operands = types.operands,
                   .result = types.result,
                   .compute = types.compute,
                   .padding = 1});
    }
  }
}

TEST_F(CublasLt, ScalesAndAddsC) {
  for (const Types& types : kTypes) {
    ExpectRight({.operands = types.operands,
                 .result = types.result,
                 .compute = types.compute,
                 .alpha = -1.5F,
                 .beta = 0.75F});
  }
}

TEST_F(CublasLt, Tf32RoundsOperandsToTenBits) {
  BlasBench gpu;
  BlasProblem p(gpu,
                {.m = 1, .n = 1, .k = 1, .compute = CUBLAS_COMPUTE_32F_FAST_TF32, .padding = 1});
  // Rounds down, up, and to even.
  for (const auto& [value, rounded] :
       {std::pair{1.0F + 0x1p-12F, 1.0F}, std::pair{1.0F + 0x1.8p-11F, 1.0F + 0x1p-10F},
        std::pair{-1.0F - 0x1p-11F, -1.0F}, std::pair{1.0F + 0x1p-10F, 1.0F + 0x1p-10F}}) {
    gpu.Write(p.a.memory, {value}, CUDA_R_32F);
    gpu.Write(p.b.memory, {1.0F}, CUDA_R_32F);
    ASSERT_EQ(p.Multiply(nullptr), CUBLAS_STATUS_SUCCESS);
    EXPECT_THAT(p.Result(), ElementsAre(rounded));
  }
}

TEST_F(CublasLt, DoesNotReadCWhereBetaIsZero) {
  BlasBench gpu;
  BlasProblem p(gpu, {.m = 1, .n = 1, .k = 1, .padding = 1});
  gpu.Write(p.d.memory, {std::nanf("")}, CUDA_R_32F);
  gpu.Write(p.a.memory, {2.0F}, CUDA_R_32F);
  gpu.Write(p.b.memory, {3.0F}, CUDA_R_32F);
  ASSERT_EQ(p.Multiply(nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(p.Result(), ElementsAre(6.0F));
}

TEST_F(CublasLt, ResultsMayBeRowMajor) { ExpectRight({.row_major_d = true, .beta = 1.0F}); }

constexpr std::array<cublasLtEpilogue_t, 13> kEpilogues = {
    CUBLASLT_EPILOGUE_BIAS,       CUBLASLT_EPILOGUE_RELU,          CUBLASLT_EPILOGUE_RELU_BIAS,
    CUBLASLT_EPILOGUE_RELU_AUX,   CUBLASLT_EPILOGUE_RELU_AUX_BIAS, CUBLASLT_EPILOGUE_GELU,
    CUBLASLT_EPILOGUE_GELU_BIAS,  CUBLASLT_EPILOGUE_GELU_AUX,      CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
    CUBLASLT_EPILOGUE_DRELU,      CUBLASLT_EPILOGUE_DRELU_BGRAD,   CUBLASLT_EPILOGUE_DGELU,
    CUBLASLT_EPILOGUE_DGELU_BGRAD};

TEST_F(CublasLt, AppliesEveryEpilogueInAllTypes) {
  for (const Types& types : kTypes) {
    for (const cublasLtEpilogue_t epilogue : kEpilogues) {
      ExpectRight({.m = 19,
                   .n = 11,
                   .k = 30,
                   .operands = types.operands,
                   .result = types.result,
                   .compute = types.compute,
                   .epilogue = epilogue});
    }
  }
}

TEST_F(CublasLt, GeluKeepsWhatItIsAppliedTo) {
  for (const Types& types : kTypes) {
    BlasBench gpu;
    BlasProblem p(gpu, {.operands = types.operands,
                        .result = types.result,
                        .compute = types.compute,
                        .epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS});
    const ExpectedProduct expected = Expect(p);
    ASSERT_EQ(p.Multiply(&p.Heuristic().front().algo), CUBLAS_STATUS_SUCCESS);
    EXPECT_THAT(gpu.Read(p.aux.memory, p.aux.elements(), p.aux.type),
                CloseTo(expected.before, expected.before_bounds));
  }
}

TEST_F(CublasLt, ReluKeepsItsSigns) {
  BlasBench gpu;
  BlasProblem p(gpu, {.m = 40, .epilogue = CUBLASLT_EPILOGUE_RELU_AUX});
  ASSERT_EQ(p.Multiply(&p.Heuristic().front().algo), CUBLAS_STATUS_SUCCESS);
  const Floats result = p.Result();
  const Floats bits = gpu.Read(p.mask, p.mask_leading * p.c.n / 32, CUDA_R_32F);
  std::memcpy(p.mask_bytes.data(), bits.data(), p.mask_bytes.size());
  std::vector<bool> positive, kept;
  for (int64_t j = 0; j < p.c.n; ++j) {
    for (int64_t i = 0; i < p.c.m; ++i) {
      positive.push_back(result[static_cast<size_t>(j * p.c.m + i)] > 0.0F);
      kept.push_back(p.MaskBit(i, j));
    }
  }
  EXPECT_EQ(kept, positive);
}

TEST_F(CublasLt, WorksOnOperandsAsTheyAreWhenItsTurnComes) {
  Reset({.delay = 0.99});
  BlasBench gpu;
  BlasProblem p(gpu, {.m = 1, .n = 1, .k = 1, .padding = 1});
  std::byte* const later = gpu.Upload({4.0F}, CUDA_R_32F);
  gpu.Write(p.b.memory, {2.0F}, CUDA_R_32F);
  ASSERT_EQ(cudaMemcpyAsync(p.a.memory, later, 4, cudaMemcpyDeviceToDevice, gpu.stream),
            cudaSuccess);
  ASSERT_EQ(p.Multiply(nullptr), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaMemcpyAsync(p.a.memory, p.b.memory, 4, cudaMemcpyDeviceToDevice, gpu.stream),
            cudaSuccess);
  EXPECT_THAT(p.Result(), ElementsAre(8.0F));
}

}  // namespace
}  // namespace stagecoach::testing::cuda
