#include "tests/testing/cuda/cublas_lt/problem.h"

#include "absl/strings/str_cat.h"
#include "kernels/bfloat16.h"
#include "tests/testing/random_tensor.h"

namespace stagecoach::testing::cuda {
namespace {

using kernels::FromBfloat16;
using kernels::ToBfloat16;

int64_t BytesOf(cudaDataType_t type) { return type == CUDA_R_16BF ? 2 : 4; }
float RoundTo(cudaDataType_t type, float value) {
  return type == CUDA_R_16BF ? FromBfloat16(ToBfloat16(value)) : value;
}

StoredMatrix MakeStored(int64_t rows, int64_t columns, bool row_major, cudaDataType_t type,
                        int64_t padding, uint64_t stream) {
  StoredMatrix stored = {.rows = rows, .columns = columns, .row_major = row_major, .type = type};
  const int64_t line = row_major ? columns : rows;
  stored.leading = padding == 0 ? line : (line + padding - 1) / padding * padding;
  stored.values = RandomNormal(stored.elements(), stream);
  for (float& value : stored.values) value = RoundTo(type, value);
  return stored;
}

}  // namespace

BlasBench::BlasBench() {
  int low = 0, high = 0;
  EXPECT_EQ(cudaDeviceGetStreamPriorityRange(&low, &high), cudaSuccess);
  EXPECT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, low), cudaSuccess);
  EXPECT_EQ(cublasLtCreate(&handle), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cudaHostAlloc(reinterpret_cast<void**>(&staging_), kStagingBytes, 0), cudaSuccess);
}

BlasBench::~BlasBench() {
  Wait();
  for (void* const memory : memory_) EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFreeHost(staging_), cudaSuccess);
  EXPECT_EQ(cublasLtDestroy(handle), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(live().total(), 0);
}

std::byte* BlasBench::Allocate(int64_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, static_cast<size_t>(bytes)), cudaSuccess);
  memory_.push_back(memory);
  return static_cast<std::byte*>(memory);
}

std::byte* BlasBench::Upload(const Floats& values, cudaDataType_t type) {
  std::byte* const memory = Allocate(static_cast<int64_t>(values.size()) * BytesOf(type));
  Write(memory, values, type);
  return memory;
}

void BlasBench::Write(std::byte* memory, const Floats& values, cudaDataType_t type) {
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = ToBfloat16(values[i]);
    if (type == CUDA_R_16BF) std::memcpy(staging_ + 2 * i, &bits, 2);
    if (type == CUDA_R_32F) std::memcpy(staging_ + 4 * i, &values[i], 4);
  }
  Copy(memory, staging_, static_cast<int64_t>(values.size()) * BytesOf(type));
}

Floats BlasBench::Read(const std::byte* memory, int64_t elements, cudaDataType_t type) {
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

void BlasBench::Copy(void* to, const void* from, int64_t bytes) {
  EXPECT_EQ(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream),
            cudaSuccess);
  Wait();
}

std::string NameOf(const BlasCase& c) {
  return absl::StrCat("m ", c.m, " n ", c.n, " k ", c.k, c.transpose_a ? " A^T" : " A",
                      c.row_major_a ? " by rows" : "", c.transpose_b ? " B^T" : " B",
                      c.row_major_b ? " by rows" : "", " operands ", c.operands, " result ",
                      c.result, " compute ", c.compute, " epilogue ", c.epilogue);
}

BlasProblem::BlasProblem(BlasBench& gpu, const BlasCase& of) : c(of), gpu_(gpu) {
  const int64_t pad = c.padding;
  a = MakeStored(c.transpose_a ? c.k : c.m, c.transpose_a ? c.m : c.k, c.row_major_a, c.operands,
                 pad, 1);
  b = MakeStored(c.transpose_b ? c.n : c.k, c.transpose_b ? c.k : c.n, c.row_major_b, c.operands,
                 pad, 2);
  d = MakeStored(c.m, c.n, c.row_major_d, c.result, pad, 3);
  bias = MakeStored(c.m, 1, false, c.result, 0, 4);
  aux = MakeStored(c.m, c.n, false, c.result, 8, 5);
  mask_leading = (c.m + 127) / 128 * 128;
  EXPECT_EQ(cublasLtMatmulDescCreate(&desc, c.compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
  Set(CUBLASLT_MATMUL_DESC_TRANSA, c.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  Set(CUBLASLT_MATMUL_DESC_TRANSB, c.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  Set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
  for (StoredMatrix* const matrix : {&a, &b, &d, &bias, &aux}) {
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

BlasProblem::~BlasProblem() {
  EXPECT_EQ(cublasLtMatmulDescDestroy(desc), CUBLAS_STATUS_SUCCESS);
  EXPECT_EQ(cublasLtMatmulPreferenceDestroy(preference), CUBLAS_STATUS_SUCCESS);
  for (cublasLtMatrixLayout_t layout : {layout_a, layout_b, layout_d}) {
    EXPECT_EQ(cublasLtMatrixLayoutDestroy(layout), CUBLAS_STATUS_SUCCESS);
  }
}

std::vector<cublasLtMatmulHeuristicResult_t> BlasProblem::Heuristic(cublasStatus_t expected,
                                                                    int wanted) {
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(wanted));
  int found = -1;
  EXPECT_EQ(cublasLtMatmulAlgoGetHeuristic(gpu_.handle, desc, layout_a, layout_b, layout_d,
                                           layout_d, preference, wanted, results.data(), &found),
            expected);
  results.resize(static_cast<size_t>(std::max(found, 0)));
  return results;
}

cublasStatus_t BlasProblem::Init(int32_t id, cublasLtMatmulAlgo_t& algo) {
  return cublasLtMatmulAlgoInit(gpu_.handle, c.compute, CUDA_R_32F, c.operands, c.operands,
                                c.result, c.result, id, &algo);
}

cublasStatus_t BlasProblem::Check(const cublasLtMatmulAlgo_t& algo, size_t* workspace_bytes) {
  cublasLtMatmulHeuristicResult_t result = {};
  const cublasStatus_t status = cublasLtMatmulAlgoCheck(gpu_.handle, desc, layout_a, layout_b,
                                                        layout_d, layout_d, &algo, &result);
  if (workspace_bytes != nullptr) *workspace_bytes = result.workspaceSize;
  return status;
}

cublasStatus_t BlasProblem::Multiply(const cublasLtMatmulAlgo_t* algo, size_t workspace_bytes) {
  return cublasLtMatmul(gpu_.handle, desc, &c.alpha, a.memory, layout_a, b.memory, layout_b,
                        &c.beta, d.memory, layout_d, d.memory, layout_d, algo, workspace,
                        workspace_bytes, gpu_.stream);
}

Floats BlasProblem::Result() {
  StoredMatrix result = d;
  result.values = gpu_.Read(d.memory, d.elements(), d.type);
  Floats values;
  for (int64_t j = 0; j < c.n; ++j) {
    for (int64_t i = 0; i < c.m; ++i) values.push_back(static_cast<float>(result.At(i, j)));
  }
  return values;
}

cublasLtMatrixLayout_t BlasProblem::MakeLayout(const StoredMatrix& stored) {
  cublasLtMatrixLayout_t layout = nullptr;
  EXPECT_EQ(cublasLtMatrixLayoutCreate(&layout, stored.type, static_cast<uint64_t>(stored.rows),
                                       static_cast<uint64_t>(stored.columns), stored.leading),
            CUBLAS_STATUS_SUCCESS);
  const int32_t order = stored.row_major ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
  EXPECT_EQ(
      cublasLtMatrixLayoutSetAttribute(layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof(order)),
      CUBLAS_STATUS_SUCCESS);
  return layout;
}

void BlasProblem::UploadMask() {
  // The bits of random floats are random enough.
  const Floats bits = RandomNormal(mask_leading * c.n / 32, 6);
  mask = gpu_.Upload(bits, CUDA_R_32F);
  mask_bytes.resize(bits.size() * 4);
  std::memcpy(mask_bytes.data(), bits.data(), mask_bytes.size());
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

}  // namespace stagecoach::testing::cuda
