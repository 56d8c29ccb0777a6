#include "tests/testing/cuda/cublas_lt/description.h"

#include <algorithm>
#include <array>

namespace stagecoach::testing::cuda {
namespace {

bool IsType(uint32_t type) { return type == CUDA_R_32F || type == CUDA_R_16BF; }

Matrix MatrixOf(const MatrixLayout& layout) {
  return {.data = nullptr,
          .type = static_cast<cudaDataType_t>(layout.type),
          .rows = static_cast<int64_t>(layout.rows),
          .columns = static_cast<int64_t>(layout.columns),
          .leading = layout.leading,
          .row_major = layout.order == CUBLASLT_ORDER_ROW};
}

cublasStatus_t CheckLayout(const MatrixLayout& layout) {
  if (!IsType(layout.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (layout.order != CUBLASLT_ORDER_COL && layout.order != CUBLASLT_ORDER_ROW) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const uint64_t line = layout.order == CUBLASLT_ORDER_ROW ? layout.columns : layout.rows;
  if (layout.rows == 0 || layout.columns == 0 || layout.leading < static_cast<int64_t>(line)) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (std::max(layout.rows, layout.columns) > INT32_MAX) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

bool IsEpilogue(uint32_t epilogue) {
  switch (epilogue) {
    case CUBLASLT_EPILOGUE_DEFAULT:
    case CUBLASLT_EPILOGUE_BIAS:
    case CUBLASLT_EPILOGUE_RELU:
    case CUBLASLT_EPILOGUE_RELU_BIAS:
    case CUBLASLT_EPILOGUE_RELU_AUX:
    case CUBLASLT_EPILOGUE_RELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_GELU:
    case CUBLASLT_EPILOGUE_GELU_BIAS:
    case CUBLASLT_EPILOGUE_GELU_AUX:
    case CUBLASLT_EPILOGUE_GELU_AUX_BIAS:
    case CUBLASLT_EPILOGUE_DRELU:
    case CUBLASLT_EPILOGUE_DRELU_BGRAD:
    case CUBLASLT_EPILOGUE_DGELU:
    case CUBLASLT_EPILOGUE_DGELU_BGRAD:
      return true;
    default:
      return false;
  }
}

cublasStatus_t CheckEpilogue(const MatmulDesc& desc, const Product& product) {
  if (!IsEpilogue(desc.epilogue)) return CUBLAS_STATUS_INVALID_VALUE;
  if (desc.epilogue != CUBLASLT_EPILOGUE_DEFAULT && product.d.row_major) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  // Bias vectors and bias gradients have D's type (the exceptions are of 8-bit types).
  const auto type = static_cast<int32_t>(product.d.type);
  if (desc.bias_type != -1 && desc.bias_type != type) return CUBLAS_STATUS_INVALID_VALUE;
  if (!UsesAux(desc.epilogue)) return CUBLAS_STATUS_SUCCESS;
  const int64_t multiple = UsesMask(desc.epilogue) ? 128 : 8;
  if (desc.aux_leading < product.m || desc.aux_leading % multiple != 0) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!UsesMask(desc.epilogue) && desc.aux_type != -1 && desc.aux_type != type) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

bool IsTransposed(int32_t operation) { return operation != CUBLAS_OP_N; }

}  // namespace

cublasStatus_t CheckTypes(const MatmulDesc& desc, const Product& product) {
  const bool tf32 = desc.compute_type == CUBLAS_COMPUTE_32F_FAST_TF32;
  if (!tf32 && desc.compute_type != CUBLAS_COMPUTE_32F &&
      desc.compute_type != CUBLAS_COMPUTE_32F_PEDANTIC) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (desc.scale_type != CUDA_R_32F) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (desc.pointer_mode != CUBLASLT_POINTER_MODE_HOST) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (product.a.type != product.b.type || product.c.type != product.d.type) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!IsType(product.a.type) || !IsType(product.d.type)) return CUBLAS_STATUS_NOT_SUPPORTED;
  const bool bf16 = product.a.type == CUDA_R_16BF;
  if (tf32 && bf16) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (!bf16 && product.d.type == CUDA_R_16BF) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

bool UsesBias(uint32_t epilogue) {
  return (epilogue & (CUBLASLT_EPILOGUE_BIAS | kBiasGradientBit)) != 0;
}
bool UsesAux(uint32_t epilogue) { return (epilogue & kAuxBit) != 0; }
bool UsesMask(uint32_t epilogue) {
  return UsesAux(epilogue) && (epilogue & (CUBLASLT_EPILOGUE_RELU | 8U)) != 0;
}

std::pair<cublasStatus_t, Product> Describe(const MatmulDesc* desc, const Layouts& layouts) {
  Product product;
  const std::array handles = {layouts.a, layouts.b, layouts.c, layouts.d};
  const std::array matrices = {&product.a, &product.b, &product.c, &product.d};
  if (desc == nullptr) return {CUBLAS_STATUS_INVALID_VALUE, product};
  for (size_t i = 0; i < handles.size(); ++i) {
    const MatrixLayout* const layout = Find(handles[i]);
    if (layout == nullptr) return {CUBLAS_STATUS_INVALID_VALUE, product};
    const cublasStatus_t status = CheckLayout(*layout);
    if (status != CUBLAS_STATUS_SUCCESS) return {status, product};
    *matrices[i] = MatrixOf(*layout);
  }
  product.transpose_a = IsTransposed(desc->transpose_a);
  product.transpose_b = IsTransposed(desc->transpose_b);
  product.m = product.transpose_a ? product.a.columns : product.a.rows;
  product.k = product.transpose_a ? product.a.rows : product.a.columns;
  product.n = product.transpose_b ? product.b.rows : product.b.columns;
  const int64_t k_of_b = product.transpose_b ? product.b.columns : product.b.rows;
  const auto is_result = [&product](const Matrix& matrix) {
    return matrix.rows == product.m && matrix.columns == product.n;
  };
  if (k_of_b != product.k || !is_result(product.c) || !is_result(product.d)) {
    return {CUBLAS_STATUS_INVALID_VALUE, product};
  }
  if (product.c.row_major != product.d.row_major) return {CUBLAS_STATUS_NOT_SUPPORTED, product};
  product.tf32 = desc->compute_type == CUBLAS_COMPUTE_32F_FAST_TF32;
  product.epilogue = static_cast<cublasLtEpilogue_t>(desc->epilogue);
  product.bias = {.data = static_cast<std::byte*>(desc->bias),
                  .type = product.d.type,
                  .rows = product.m,
                  .columns = 1};
  product.bias.leading = product.bias.rows;
  product.aux = {.data = static_cast<std::byte*>(desc->aux),
                 .type = product.d.type,
                 .rows = product.m,
                 .columns = product.n,
                 .leading = desc->aux_leading};
  cublasStatus_t status = CheckTypes(*desc, product);
  if (status == CUBLAS_STATUS_SUCCESS) status = CheckEpilogue(*desc, product);
  return {status, product};
}

}  // namespace stagecoach::testing::cuda
