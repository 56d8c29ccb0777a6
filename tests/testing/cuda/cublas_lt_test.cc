#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/bfloat16.h"
#include "tests/testing/close_to.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::testing::cuda {
namespace {

using kernels::DType;
using kernels::FromBfloat16;
using kernels::ToBfloat16;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;
using Floats = std::vector<float>;

constexpr double kBfloat16Roundoff = 0x1p-8;
constexpr double kTf32Roundoff = 0x1p-11;
constexpr size_t kWorkspaceBytes = size_t{1} << 20;

int64_t BytesOf(cudaDataType_t type) { return type == CUDA_R_16BF ? 2 : 4; }
float RoundTo(cudaDataType_t type, float value) {
  return type == CUDA_R_16BF ? FromBfloat16(ToBfloat16(value)) : value;
}

// A stream, a handle, and device memory that is copied to and from.
class Gpu {
 public:
  Gpu() {
    int low = 0, high = 0;
    EXPECT_EQ(cudaDeviceGetStreamPriorityRange(&low, &high), cudaSuccess);
    EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, low), cudaSuccess);
    EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&staging_), kStagingBytes, 0), cudaSuccess);
  }
  ~Gpu() {
    Wait();
    for (void* const memory : memory_) EXPECT_EQ(cudaFree(memory), cudaSuccess);
    EXPECT_EQ(cudaFreeHost(staging_), cudaSuccess);
    EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    EXPECT_EQ(live().total(), 0);
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  std::byte* Allocate(int64_t bytes) {
    void* memory = nullptr;
    EXPECT_EQ(cudaMalloc(&memory, static_cast<size_t>(bytes)), cudaSuccess);
    memory_.push_back(memory);
    return static_cast<std::byte*>(memory);
  }
  std::byte* Upload(const Floats& values, cudaDataType_t type) {
    std::byte* const memory = Allocate(static_cast<int64_t>(values.size()) * BytesOf(type));
    Write(memory, values, type);
    return memory;
  }
  void Write(std::byte* memory, const Floats& values, cudaDataType_t type) {
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t bits = ToBfloat16(values[i]);
      if (type == CUDA_R_16BF) std::memcpy(staging_ + 2 * i, &bits, 2);
      if (type == CUDA_R_32F) std::memcpy(staging_ + 4 * i, &values[i], 4);
    }
    Copy(memory, staging_, static_cast<int64_t>(values.size()) * BytesOf(type));
  }
  Floats Read(const std::byte* memory, int64_t elements, cudaDataType_t type) {
    Copy(staging_, memory, elements * BytesOf(type));
    Floats values(static_cast<size_t>(elements));
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t bits = 0;
      if (type == CUDA_R_16BF) std::memcpy(&bits, staging_ + 2 * i, 2);
      if (type == CUDA_R_32F) std::memcpy(&values[i], staging_ + 4 * i, 4);
      if (type == CUDA_R_16BF) values[i] = FromBfloat16(bits);
    }
    return values;
  }
  void Wait() { EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess); }

  cudaStream_t stream = nullptr;
  cublasLtHandle_t handle = nullptr;

 private:
  static constexpr size_t kStagingBytes = size_t{1} << 20;
  void Copy(void* to, const void* from, int64_t bytes) {
    EXPECT_EQ(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
              cudaSuccess);
    Wait();
  }
  std::byte* staging_ = nullptr;
  std::vector<void*> memory_;
};

// A product and all that is said of it.
struct Case {
  int64_t m = 8, n = 16, k = 24;
  bool transpose_a = false, transpose_b = false;
  bool row_major_a = false, row_major_b = false, row_major_d = false;
  cudaDataType_t operands = CUDA_R_32F, result = CUDA_R_32F;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  float alpha = 1.0F, beta = 0.0F;
  int64_t padding = 8;  // elements between lines
};

std::string NameOf(const Case& c) {
  return absl::StrCat("m ", c.m, " n ", c.n, " k ", c.k, c.transpose_a ? " A^T" : " A",
                      c.row_major_a ? " by rows" : "", c.transpose_b ? " B^T" : " B",
                      c.row_major_b ? " by rows" : "", " operands ", c.operands, " result ",
                      c.result, " compute ", c.compute, " epilogue ", c.epilogue);
}

// A matrix in memory: its lines, and nothing defined between them.
struct Stored {
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

Stored MakeStored(int64_t rows, int64_t columns, bool row_major, cudaDataType_t type,
                  int64_t padding, uint64_t stream) {
  Stored stored = {.rows = rows, .columns = columns, .row_major = row_major, .type = type};
  const int64_t line = row_major ? columns : rows;
  stored.leading = padding == 0 ? line : (line + padding - 1) / padding * padding;
  stored.values = RandomNormal(stored.elements(), stream);
  for (float& value : stored.values) value = RoundTo(type, value);
  return stored;
}

// The library's objects of a case, and its operands in memory.
class Problem {
 public:
  Problem(Gpu& gpu, const Case& of) : c(of), gpu_(gpu) {
    const int64_t pad = c.padding;
    a = MakeStored(c.transpose_a ? c.k : c.m, c.transpose_a ? c.m : c.k, c.row_major_a, c.operands,
                   pad, 1);
    b = MakeStored(c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n, c.row_major_b, c.operands,
                   pad, 2);
    d = MakeStored(c.m, c.n, c.row_major_d, c.result, pad, 3);
    bias = MakeStored(c.epilogue == CUBLASLT_EPILOGUE_BGRADB ? c.n : c.m, 1, false, c.result, 0, 4);
    aux = MakeStored(c.m, c.n, false, c.result, 8, 5);
    mask_leading = (c.m + 127) / 128 * 128;
    EXPECT_EQ(cublasLtMatmulDescCreate(&desc, c.compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    Set(CUBLASLT_MATMUL_DESC_TRANSA, c.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(CUBLASLT_MATMUL_DESC_TRANSB, c.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
    for (Stored* const matrix : {&a, &b, &d, &bias, &aux}) {
      matrix->memory = gpu.Upload(matrix->values, matrix->type);
    }
    const bool is_mask = (c.epilogue & (2 | 8)) != 0;
    if (is_mask) UploadMask();
    Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias.memory);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, is_mask ? mask : aux.memory);
    Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, is_mask ? mask_leading : aux.leading);
    layout_a = MakeLayout(a);
    layout_b = MakeLayout(b);
    layout_d = MakeLayout(d);
    EXPECT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
    SetPreference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspaceBytes});
    workspace = gpu.Allocate(kWorkspaceBytes);
  }
  ~Problem() {
    EXPECT_EQ(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
    for (cublasLtMatrixLayout_t layout : {layout_a, layout_b, layout_d}) {
      EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
    }
  }
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

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
      cublasStatus_t expected = CUBLAS_STATUS_SUCCESS, int wanted = 16) {
    std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(wanted));
    int found = -1;
    EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(gpu_.handle, desc, layout_a, layout_b, layout_d,
                                             layout_d, preference, wanted, results.data(), &found),
              expected);
    results.resize(static_cast<size_t>(std::max(found, 0)));
    return results;
  }

  // In place: C is D.
  cublasStatus_t Multiply(const cublasLtMatmulAlgo_t* algo,
                          size_t workspace_bytes = kWorkspaceBytes) {
    return cublasLtMatmul(gpu_.handle, desc, &c.alpha, a.memory, layout_a, b.memory, layout_b,
                          &c.beta, d.memory, layout_d, d.memory, layout_d, algo, workspace,
                          workspace_bytes, gpu_.stream);
  }

  // D, column by column, without what lies between its lines.
  Floats Result() {
    Stored result = d;
    result.values = gpu_.Read(d.memory, d.elements(), d.type);
    Floats values;
    for (int64_t j = 0; j < c.n; ++j) {
      for (int64_t i = 0; i < c.m; ++i) values.push_back(static_cast<float>(result.At(i, j)));
    }
    return values;
  }

  bool MaskBit(int64_t row, int64_t column) const {
    const int64_t bit = row + column * mask_leading;
    return (mask_bytes[static_cast<size_t>(bit / 8)] >> (bit % 8) & 1) != 0;
  }

  Case c;
  Stored a, b, d, bias, aux;
  int64_t mask_leading = 0;
  std::vector<uint8_t> mask_bytes;
  std::byte* mask = nullptr;
  std::byte* workspace = nullptr;
  cublasLtMatmulDesc_t desc = nullptr;
  cublasLtMatrixLayout_t layout_a = nullptr, layout_b = nullptr, layout_d = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;

 private:
  static cublasLtMatrixLayout_t MakeLayout(const Stored& stored) {
    cublasLtMatrixLayout_t layout = nullptr;
    EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, stored.type, static_cast<uint64_t>(stored.rows),
                                         static_cast<uint64_t>(stored.columns), stored.leading),
              CUBLAS_STATUS_SUCCESS);
    const int32_t order = stored.row_major ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
    EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order,
                                               sizeof(order)),
              CUBLAS_STATUS_SUCCESS);
    return layout;
  }
  void UploadMask() {
    // The bits of random floats are random enough.
    const Floats bits = RandomNormal(mask_leading * c.n / 32, 6);
    mask = gpu_.Upload(bits, CUDA_R_32F);
    mask_bytes.resize(bits.size() * 4);
    std::memcpy(mask_bytes.data(), bits.data(), mask_bytes.size());
  }

  Gpu& gpu_;
};

// The exact result, column by column, and how far from it the library may be.
struct Expected {
  std::vector<double> values, bounds;         // D
  std::vector<double> bias, bias_bounds;      // the bias gradient
  std::vector<double> before, before_bounds;  // what the activation is applied to
};

double Gelu(double z) {
  return 0.5 * z * (1.0 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z)));
}
double GeluDerivative(double z) {
  const double t = std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z));
  return 0.5 * (1.0 + t) +
         0.5 * z * (1.0 - t * t) * 0.7978845608028654 * (1.0 + 3.0 * 0.044715 * z * z);
}

// A value that is stored is rounded once more.
double WhenStored(cudaDataType_t type, double value, double error) {
  const double u = type == CUDA_R_16BF ? kBfloat16Roundoff : 0.0;
  return error + u * (std::fabs(value) + error);
}

constexpr int kMostParts = 4;  // that an algorithm splits k into

Expected Expect(const Problem& p) {
  Expected expected;
  const Case& c = p.c;
  const uint32_t epilogue = c.epilogue;
  const bool tf32 = c.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  // Of operands, and of parts of the sum that are kept in the type of the result.
  const double operand_error = tf32 ? 2 * kTf32Roundoff + kTf32Roundoff * kTf32Roundoff : 0.0;
  const double part_error = c.result == CUDA_R_16BF ? (kMostParts + 1) * kBfloat16Roundoff : 0.0;
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < c.m; ++i) {
      double sum = 0, magnitude = 0;
      for (int64_t q = 0; q < c.k; ++q) {
        const double product = p.a.At(i, q, c.transpose_a) * p.b.At(q, j, c.transpose_b);
        sum += product;
        magnitude += std::fabs(product);
      }
      const double old = c.beta == 0.0F ? 0.0 : c.beta * p.d.At(i, j);
      const double added = (epilogue & 4) != 0 ? p.bias.At(i, 0) : 0.0;
      const double z = c.alpha * sum + old + added;
      const double scale = std::fabs(c.alpha) * magnitude;
      const double error = Gamma(c.k + kMostParts + 5) * (scale + std::fabs(old + added)) +
                           1.01 * (operand_error + part_error) * scale;
      double value = z, bound = error;
      if ((epilogue & 2) != 0) value = std::max(z, 0.0);
      if ((epilogue & 32) != 0) {
        value = Gelu(z);
        bound = GeluBound(z, error);
      }
      if ((epilogue & 8) != 0 && !p.MaskBit(i, j)) value = bound = 0.0;
      if ((epilogue & 64) != 0) {
        const double slope = GeluDerivative(p.aux.At(i, j));
        const double slope_error = GeluDerivativeBound(p.aux.At(i, j));
        value = z * slope;
        bound = error * (std::fabs(slope) + slope_error) +
                std::fabs(z) * (slope_error + Gamma(1) * std::fabs(slope));
      }
      expected.before.push_back(z);
      expected.before_bounds.push_back(WhenStored(c.result, z, error));
      expected.values.push_back(value);
      expected.bounds.push_back(bound);
    }
  }
  const auto add_bias = [&](double sum, double magnitude, double error, int64_t terms) {
    expected.bias.push_back(sum);
    expected.bias_bounds.push_back(
        WhenStored(c.result, sum, error + Gamma(terms) * (magnitude + error)));
  };
  if (epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB) {
    const bool of_a = epilogue == CUBLASLT_EPILOGUE_BGRADA;
    for (int64_t i = 0; i < (of_a ? c.m : c.n); ++i) {
      double sum = 0, magnitude = 0;
      for (int64_t q = 0; q < c.k; ++q) {
        const double term = of_a ? p.a.At(i, q, c.transpose_a) : p.b.At(q, i, c.transpose_b);
        sum += term;
        magnitude += std::fabs(term);
      }
      add_bias(sum, magnitude, 0.0, c.k);
    }
  }
  if ((epilogue & 16) != 0) {
    for (int64_t i = 0; i < c.m; ++i) {
      double sum = 0, magnitude = 0, error = 0;
      for (int64_t j = 0; j < c.n; ++j) {
        const auto index = static_cast<size_t>(j * c.m + i);
        sum += expected.values[index];
        magnitude += std::fabs(expected.values[index]);
        error += expected.bounds[index];
      }
      add_bias(sum, magnitude, error, c.n);
    }
  }
  for (size_t i = 0; i < expected.values.size(); ++i) {
    expected.bounds[i] = WhenStored(c.result, expected.values[i], expected.bounds[i]);
  }
  return expected;
}

int32_t IdOf(const cublasLtMatmulAlgo_t& algo) {
  int32_t id = -1;
  size_t written = 0;
  EXPECT_EQ(cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_ID, &id, sizeof(id),
                                                 &written),
            CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(written, sizeof(id));
  return id;
}

// Every algorithm computes the product; D, bias gradient and aux are what they should be.
void ExpectRight(const Case& c) {
  SCOPED_TRACE(NameOf(c));
  Gpu gpu;
  Problem p(gpu, c);
  const Expected expected = Expect(p);
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

class CublasLt : public ::testing::Test {
 protected:
  CublasLt() { Reset({.delay = 0.2}); }
};

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
  Gpu gpu;
  Problem p(gpu, {.m = 1, .n = 1, .k = 1, .compute = CUBLAS_COMPUTE_32F_FAST_TF32, .padding = 1});
  // Down, up, and to even.
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
  Gpu gpu;
  Problem p(gpu, {.m = 1, .n = 1, .k = 1, .padding = 1});
  gpu.Write(p.d.memory, {std::nanf("")}, CUDA_R_32F);
  gpu.Write(p.a.memory, {2.0F}, CUDA_R_32F);
  gpu.Write(p.b.memory, {3.0F}, CUDA_R_32F);
  ASSERT_EQ(p.Multiply(nullptr), CUBLAS_STATUS_SUCCESS);
  EXPECT_THAT(p.Result(), ElementsAre(6.0F));
}

TEST_F(CublasLt, ResultsMayBeRowMajor) { ExpectRight({.row_major_d = true, .beta = 1.0F}); }

constexpr std::array<cublasLtEpilogue_t, 15> kEpilogues = {
    CUBLASLT_EPILOGUE_BIAS,        CUBLASLT_EPILOGUE_RELU,          CUBLASLT_EPILOGUE_RELU_BIAS,
    CUBLASLT_EPILOGUE_RELU_AUX,    CUBLASLT_EPILOGUE_RELU_AUX_BIAS, CUBLASLT_EPILOGUE_GELU,
    CUBLASLT_EPILOGUE_GELU_BIAS,   CUBLASLT_EPILOGUE_GELU_AUX,      CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
    CUBLASLT_EPILOGUE_DRELU,       CUBLASLT_EPILOGUE_DRELU_BGRAD,   CUBLASLT_EPILOGUE_DGELU,
    CUBLASLT_EPILOGUE_DGELU_BGRAD, CUBLASLT_EPILOGUE_BGRADA,        CUBLASLT_EPILOGUE_BGRADB};

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

TEST_F(CublasLt, BiasGradientsFollowTransposes) {
  for (const cublasLtEpilogue_t epilogue : {CUBLASLT_EPILOGUE_BGRADA, CUBLASLT_EPILOGUE_BGRADB}) {
    for (int way = 0; way < 4; ++way) {
      ExpectRight({.m = 6,
                   .n = 10,
                   .k = 14,
                   .transpose_a = (way & 1) != 0,
                   .transpose_b = (way & 2) != 0,
                   .epilogue = epilogue});
    }
  }
}

TEST_F(CublasLt, BiasGradientsAreStoredWhateverBetaIs) {
  ExpectRight({.epilogue = CUBLASLT_EPILOGUE_BGRADB, .beta = 1.0F});
}

TEST_F(CublasLt, GeluKeepsWhatItIsAppliedTo) {
  for (const Types& types : kTypes) {
    Gpu gpu;
    Problem p(gpu, {.operands = types.operands,
                    .result = types.result,
                    .compute = types.compute,
                    .epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS});
    const Expected expected = Expect(p);
    ASSERT_EQ(p.Multiply(&p.Heuristic().front().algo), CUBLAS_STATUS_SUCCESS);
    EXPECT_THAT(gpu.Read(p.aux.memory, p.aux.elements(), p.aux.type),
                CloseTo(expected.before, expected.before_bounds));
  }
}

TEST_F(CublasLt, ReluKeepsItsSigns) {
  Gpu gpu;
  Problem p(gpu, {.m = 40, .epilogue = CUBLASLT_EPILOGUE_RELU_AUX});
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
  Gpu gpu;
  Problem p(gpu, {.m = 1, .n = 1, .k = 1, .padding = 1});
  std::byte* const later = gpu.Upload({4.0F}, CUDA_R_32F);
  gpu.Write(p.b.memory, {2.0F}, CUDA_R_32F);
  ASSERT_EQ(cudaMemcpyAsync(p.a.memory, later, 4, cudaMemcpyDeviceToDevice, gpu.stream),
            cudaSuccess);
  ASSERT_EQ(p.Multiply(nullptr), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cudaMemcpyAsync(p.a.memory, p.b.memory, 4, cudaMemcpyDeviceToDevice, gpu.stream),
            cudaSuccess);
  EXPECT_THAT(p.Result(), ElementsAre(8.0F));
}

std::vector<uint32_t> BitsOf(const Floats& values) {
  std::vector<uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  return bits;
}

TEST_F(CublasLt, AlgorithmsDifferInLastBitsAndKeepTheirOwn) {
  Gpu gpu;
  Problem p(gpu, {.m = 32, .n = 32, .k = 200});
  std::vector<std::vector<uint32_t>> bits;
  std::vector<int32_t> ids;
  for (const auto& result : p.Heuristic()) {
    ASSERT_EQ(p.Multiply(&result.algo), CUBLAS_STATUS_SUCCESS);
    const std::vector<uint32_t> first = BitsOf(p.Result());
    ASSERT_EQ(p.Multiply(&result.algo), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(BitsOf(p.Result()), first);
    EXPECT_THAT(bits, Not(::testing::Contains(first)));
    EXPECT_THAT(ids, Not(::testing::Contains(IdOf(result.algo))));
    bits.push_back(first);
    ids.push_back(IdOf(result.algo));
  }
  EXPECT_GE(bits.size(), 4U);
}

TEST_F(CublasLt, HeuristicKeepsToTheWorkspace) {
  Gpu gpu;
  Problem p(gpu, {});
  const size_t all = p.Heuristic().size();
  p.SetPreference(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{100});
  const auto results = p.Heuristic();
  EXPECT_THAT(results, Not(IsEmpty()));
  EXPECT_LT(results.size(), all);
  for (const auto& result : results) EXPECT_LE(result.workspaceSize, 100U);
}

TEST_F(CublasLt, HeuristicKeepsToReductionSchemes) {
  Gpu gpu;
  Problem p(gpu, {});
  p.SetPreference(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                  uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  int split = 0;
  for (const auto& result : p.Heuristic()) {
    uint32_t scheme = 0;
    int32_t parts = 0;
    ASSERT_EQ(
        cublasLtMatmulAlgoConfigGetAttribute(&result.algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                             &scheme, sizeof(scheme), nullptr),
        CUBLAS_STATUS_SUCCESS);
    ASSERT_EQ(cublasLtMatmulAlgoConfigGetAttribute(&result.algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                   &parts, sizeof(parts), nullptr),
              CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(scheme != CUBLASLT_REDUCTION_SCHEME_NONE, parts > 1);
    if (scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ++split;
    EXPECT_EQ(scheme & ~uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE}, 0U);
  }
  EXPECT_EQ(split, 1);
}

TEST_F(CublasLt, HeuristicGivesNoMoreThanIsWanted) {
  Gpu gpu;
  Problem p(gpu, {});
  EXPECT_EQ(p.Heuristic(CUBLAS_STATUS_SUCCESS, 2).size(), 2U);
}

// ---- What is refused.

// The heuristic and the product itself refuse what `change` makes of a problem.
template <typename Change>
void ExpectRefused(cublasStatus_t status, const Case& c, Change change) {
  SCOPED_TRACE(NameOf(c));
  Gpu gpu;
  Problem p(gpu, c);
  change(p);
  EXPECT_THAT(p.Heuristic(status), IsEmpty());
  EXPECT_EQ(p.Multiply(nullptr), status);
}
void ExpectRefused(cublasStatus_t status, const Case& c) {
  ExpectRefused(status, c, [](Problem&) {});
}

template <typename T>
void SetLayout(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t attribute, T value) {
  EXPECT_EQ(cublasLtMatrixLayoutSetAttribute(layout, attribute, &value, sizeof(value)),
            CUBLAS_STATUS_SUCCESS);
}

TEST_F(CublasLt, RefusesExtentsThatDoNotMatch) {
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {}, [](Problem& p) {
    SetLayout(p.layout_a, CUBLASLT_MATRIX_LAYOUT_COLS, uint64_t{23});
  });
}

TEST_F(CublasLt, RefusesLeadingDimensionsThatAreTooSmall) {
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {},
                [](Problem& p) { SetLayout(p.layout_b, CUBLASLT_MATRIX_LAYOUT_LD, int64_t{23}); });
}

TEST_F(CublasLt, RefusesEmptyMatrices) {
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {}, [](Problem& p) {
    SetLayout(p.layout_d, CUBLASLT_MATRIX_LAYOUT_COLS, uint64_t{0});
  });
}

TEST_F(CublasLt, RefusesCombinationsOfTypes) {
  ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED, {.operands = CUDA_R_32F, .result = CUDA_R_16BF});
  ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED,
                {.operands = CUDA_R_16BF, .compute = CUBLAS_COMPUTE_32F_FAST_TF32});
  ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED, {.compute = CUBLAS_COMPUTE_16F});
}

TEST_F(CublasLt, RefusesEpiloguesOfRowMajorResults) {
  ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED,
                {.row_major_d = true, .epilogue = CUBLASLT_EPILOGUE_BIAS});
}

TEST_F(CublasLt, RefusesAuxLeadingDimensionsOfOtherMultiples) {
  const auto set = [](int64_t leading) {
    return [leading](Problem& p) { p.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, leading); };
  };
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX}, set(12));
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {.m = 9, .epilogue = CUBLASLT_EPILOGUE_GELU_AUX},
                set(8));
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {.epilogue = CUBLASLT_EPILOGUE_RELU_AUX}, set(64));
}

TEST_F(CublasLt, RefusesBiasAndAuxOfOtherTypesThanTheResult) {
  ExpectRefused(CUBLAS_STATUS_INVALID_VALUE, {.epilogue = CUBLASLT_EPILOGUE_BIAS},
                [](Problem& p) { p.Set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF); });
  ExpectRefused(
      CUBLAS_STATUS_INVALID_VALUE, {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX},
      [](Problem& p) { p.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, CUDA_R_16BF); });
}

TEST_F(CublasLt, HasNoAuxAndNoBiasGradientsOfUnalignedLines) {
  for (const cublasLtEpilogue_t epilogue :
       {CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_BGRADB, CUBLASLT_EPILOGUE_DRELU_BGRAD}) {
    ExpectRefused(CUBLAS_STATUS_NOT_SUPPORTED, {.m = 7, .epilogue = epilogue, .padding = 1});
  }
}

TEST_F(CublasLt, RefusesNullOperands) {
  Gpu gpu;
  Problem p(gpu, {.epilogue = CUBLASLT_EPILOGUE_BIAS});
  const cublasLtMatmulAlgo_t algo = p.Heuristic().front().algo;
  p.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<void*>(nullptr));
  EXPECT_EQ(p.Multiply(&algo), CUBLAS_STATUS_INVALID_VALUE);
  p.Set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias.memory);
  p.a.memory = nullptr;
  EXPECT_EQ(p.Multiply(&algo), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, RefusesAlgorithmsOfOtherProblems) {
  Gpu gpu;
  Problem p(gpu, {});
  Problem other(gpu, {.k = 32});
  EXPECT_EQ(p.Multiply(&other.Heuristic().front().algo), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, RefusesAWorkspaceThatIsTooSmall) {
  Gpu gpu;
  Problem p(gpu, {});
  for (const auto& result : p.Heuristic()) {
    if (result.workspaceSize == 0) continue;
    EXPECT_EQ(p.Multiply(&result.algo, result.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE);
  }
}

TEST_F(CublasLt, RefusesAddressesLessAlignedThanTheAlgorithmWasAskedFor) {
  Gpu gpu;
  Problem p(gpu, {.epilogue = CUBLASLT_EPILOGUE_GELU_AUX});
  const cublasLtMatmulAlgo_t algo = p.Heuristic().front().algo;
  p.Set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.aux.memory + 4);
  EXPECT_EQ(p.Multiply(&algo), CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, RefusesAttributesOfOtherSizes) {
  Gpu gpu;
  Problem p(gpu, {});
  const int64_t transpose = CUBLAS_OP_T;
  EXPECT_EQ(cublasLtMatmulDescSetAttribute(p.desc, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                           sizeof(transpose)),
            CUBLAS_STATUS_INVALID_VALUE);
}

TEST_F(CublasLt, NeedsADriver) {
  Reset({.driver = false});
  cublasLtHandle_t handle = nullptr;
  EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_NOT_INITIALIZED);
}

TEST_F(CublasLt, FailsOnPurposeWithItsOwnErrors) {
  Gpu gpu;
  Problem p(gpu, {});
  FailCall(1);
  EXPECT_EQ(p.Multiply(nullptr), CUBLAS_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(failed_call(), "cublasLtMatmul");
  FailCall(1);
  EXPECT_THAT(p.Heuristic(CUBLAS_STATUS_INTERNAL_ERROR), IsEmpty());
}

TEST_F(CublasLt, CountsWhatIsNotDestroyed) {
  cublasLtMatmulDesc_t desc = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(live().blas_objects, 1);
  ASSERT_EQ(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(live().blas_objects, 0);
}

using CublasLtDeathTest = CublasLt;

TEST_F(CublasLtDeathTest, DiesOfOperandsInHostMemory) {
  Gpu gpu;
  Problem p(gpu, {});
  Floats host(1024);
  std::byte* const memory = std::exchange(p.b.memory, reinterpret_cast<std::byte*>(host.data()));
  EXPECT_DEATH(p.Multiply(nullptr), "cublasLtMatmul: B .* is not in memory of the stream's GPU");
  p.b.memory = memory;
}

TEST_F(CublasLtDeathTest, DiesOfResultsThatOverlapOperands) {
  Gpu gpu;
  Problem p(gpu, {.m = 16, .n = 16, .k = 16});
  std::byte* const memory = std::exchange(p.b.memory, p.d.memory);
  EXPECT_DEATH(p.Multiply(nullptr), "cublasLtMatmul: D overlaps B");
  p.b.memory = memory;
}

TEST_F(CublasLtDeathTest, DiesOfObjectsThatWereDestroyed) {
  cublasLtMatmulDesc_t desc = nullptr;
  ASSERT_EQ(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
  EXPECT_DEATH(cublasLtMatmulDescDestroy(desc), "destroyed twice");
}

}  // namespace
}  // namespace stagecoach::testing::cuda
