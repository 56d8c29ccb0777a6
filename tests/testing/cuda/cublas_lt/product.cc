#include "tests/testing/cuda/cublas_lt/product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/bfloat16.h"

namespace stagecoach::testing::cuda {
namespace {

using kernels::FromBfloat16;
using kernels::ToBfloat16;

constexpr float kGeluScale = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kGeluCubic = 0.044715F;

float GeluTanh(float z) { return std::tanh(kGeluScale * (z + kGeluCubic * z * z * z)); }
float Gelu(float z) { return 0.5F * z * (1.0F + GeluTanh(z)); }
float GeluDerivative(float z) {
  const float t = GeluTanh(z);
  return 0.5F * (1.0F + t) +
         0.5F * z * (1.0F - t) * (1.0F + t) * kGeluScale * (1.0F + 3.0F * kGeluCubic * z * z);
}

// Returns the nearest number with 10 bits of mantissa, ties to even.
float RoundToTf32(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7F800000U) == 0x7F800000U) return value;
  return std::bit_cast<float>((bits + 0xFFFU + ((bits >> 13) & 1U)) & ~0x1FFFU);
}

float RoundTo(cudaDataType_t type, float value) {
  return type == CUDA_R_16BF ? FromBfloat16(ToBfloat16(value)) : value;
}

bool Has(const Product& product, uint32_t bits) { return (product.epilogue & bits) == bits; }
constexpr uint32_t kAux = 128;

bool MaskBit(const Product& product, int64_t row, int64_t column) {
  const int64_t bit = row + column * product.aux.leading;
  return ((product.aux.data[bit / 8] >> (bit % 8)) & std::byte{1}) != std::byte{0};
}

void SetMaskBit(const Product& product, int64_t row, int64_t column, bool value) {
  const int64_t bit = row + column * product.aux.leading;
  const std::byte one = std::byte{1} << (bit % 8);
  std::byte& byte = product.aux.data[bit / 8];
  byte = value ? byte | one : byte & ~one;
}

// Returns op(X) as rows of `inner` elements: row p holds op(A)(:, p), or op(B)(p, :).
std::vector<float> Operand(const Matrix& matrix, bool swap, int64_t k, int64_t inner, bool tf32) {
  std::vector<float> values(static_cast<size_t>(k * inner));
  size_t next = 0;
  for (int64_t p = 0; p < k; ++p) {
    for (int64_t i = 0; i < inner; ++i) {
      const float value = swap ? matrix.Get(p, i) : matrix.Get(i, p);
      values[next++] = tf32 ? RoundToTf32(value) : value;
    }
  }
  return values;
}

std::vector<int64_t> Order(SumOrder order, int64_t begin, int64_t end) {
  std::vector<int64_t> sequence;
  const int64_t step = order == SumOrder::kEvenThenOdd ? 2 : 1;
  for (int64_t first = begin; first < std::min(end, begin + step); ++first) {
    for (int64_t p = first; p < end; p += step) sequence.push_back(p);
  }
  if (order == SumOrder::kDescending) std::reverse(sequence.begin(), sequence.end());
  return sequence;
}

// Computes column j of op(A) op(B), over the products of `order` alone.
void SumColumn(const std::vector<float>& a, const std::vector<float>& b, const Product& product,
               const std::vector<int64_t>& order, int64_t j, float* sum) {
  const int64_t m = product.m;
  std::fill(sum, sum + m, 0.0F);
  for (const int64_t p : order) {
    const float factor = b[static_cast<size_t>(p * product.n + j)];
    const float* row = a.data() + p * m;
    for (int64_t i = 0; i < m; ++i) sum[i] += row[i] * factor;
  }
}

// Returns the form in which a part of k is kept until the parts are added.
Matrix PartOf(const Product& product, int part) {
  Matrix matrix = {.type = product.reduction == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE
                               ? product.d.type
                               : CUDA_R_32F,
                   .rows = product.m,
                   .columns = product.n,
                   .leading = product.m};
  matrix.data = product.workspace + part * matrix.bytes();
  return matrix;
}

// Computes op(A) op(B), column by column.
std::vector<float> Accumulate(const Product& product) {
  const int64_t m = product.m, n = product.n, k = product.k;
  const std::vector<float> a = Operand(product.a, product.transpose_a, k, m, product.tf32);
  const std::vector<float> b = Operand(product.b, !product.transpose_b, k, n, product.tf32);
  std::vector<float> result(static_cast<size_t>(m * n));
  std::vector<float> column(static_cast<size_t>(m));
  const bool kept = (product.reduction & (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE |
                                          CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE)) != 0;
  for (int s = 0; s < product.split_k; ++s) {
    const std::vector<int64_t> order =
        Order(product.order, k * s / product.split_k, k * (s + 1) / product.split_k);
    for (int64_t j = 0; j < n; ++j) {
      float* const sum = result.data() + j * m;
      SumColumn(a, b, product, order, j, column.data());
      for (int64_t i = 0; i < m; ++i) {
        const float part = column[static_cast<size_t>(i)];
        if (kept) {
          PartOf(product, s).Set(i, j, part);
        } else {
          sum[i] += part;
          if (product.split_k > 1) sum[i] = RoundTo(product.d.type, sum[i]);
        }
      }
    }
  }
  for (int s = 0; kept && s < product.split_k; ++s) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t i = 0; i < m; ++i)
        result[static_cast<size_t>(j * m + i)] += PartOf(product, s).Get(i, j);
    }
  }
  return result;
}

// Applies the epilogue to one element.
float Finish(const Product& product, float value, int64_t i, int64_t j) {
  if (Has(product, CUBLASLT_EPILOGUE_BIAS)) value += product.bias.Get(i, 0);
  if (Has(product, CUBLASLT_EPILOGUE_DRELU)) return MaskBit(product, i, j) ? value : 0.0F;
  if (Has(product, CUBLASLT_EPILOGUE_DGELU)) return value * GeluDerivative(product.aux.Get(i, j));
  if (Has(product, CUBLASLT_EPILOGUE_RELU)) {
    if (Has(product, kAux)) SetMaskBit(product, i, j, value > 0.0F);
    return std::max(value, 0.0F);
  }
  if (Has(product, CUBLASLT_EPILOGUE_GELU)) {
    if (Has(product, kAux)) product.aux.Set(i, j, value);
    return Gelu(value);
  }
  return value;
}

}  // namespace

int64_t Matrix::bytes() const {
  const int64_t lines = row_major ? rows : columns;
  const int64_t line = row_major ? columns : rows;
  return ((lines - 1) * leading + line) * element_bytes();
}

float Matrix::Get(int64_t row, int64_t column) const {
  const int64_t index = row_major ? row * leading + column : column * leading + row;
  if (type == CUDA_R_16BF) {
    uint16_t bits;
    std::memcpy(&bits, data + index * 2, sizeof(bits));
    return FromBfloat16(bits);
  }
  float value;
  std::memcpy(&value, data + index * 4, sizeof(value));
  return value;
}

void Matrix::Set(int64_t row, int64_t column, float value) const {
  const int64_t index = row_major ? row * leading + column : column * leading + row;
  if (type == CUDA_R_16BF) {
    const uint16_t bits = ToBfloat16(value);
    std::memcpy(data + index * 2, &bits, sizeof(bits));
  } else {
    std::memcpy(data + index * 4, &value, sizeof(value));
  }
}

int64_t WorkspaceBytes(const Product& product) {
  constexpr int64_t kCounterBytes = 4096;  // used by INPLACE, which keeps nothing else
  switch (product.reduction) {
    case CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE:
      return product.m * product.n * product.split_k * 4;
    case CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE:
      return product.m * product.n * product.split_k * product.d.element_bytes();
    case CUBLASLT_REDUCTION_SCHEME_INPLACE:
      return kCounterBytes;
    default:
      return 0;
  }
}

void Compute(const Product& product) {
  // The workspace has no contents that matter, before or after.
  const int64_t scratch = WorkspaceBytes(product);
  if (scratch > 0) std::memset(product.workspace, 0xFF, static_cast<size_t>(scratch));

  const std::vector<float> sums = Accumulate(product);
  std::vector<float> gradient(static_cast<size_t>(product.m), 0.0F);
  for (int64_t j = 0; j < product.n; ++j) {
    for (int64_t i = 0; i < product.m; ++i) {
      float value = product.alpha * sums[static_cast<size_t>(j * product.m + i)];
      if (product.beta != 0.0F) value += product.beta * product.c.Get(i, j);
      value = Finish(product, value, i, j);
      gradient[static_cast<size_t>(i)] += value;
      product.d.Set(i, j, value);
    }
  }
  if (Has(product, kBiasGradientBit)) {
    for (int64_t i = 0; i < product.m; ++i) {
      product.bias.Set(i, 0, gradient[static_cast<size_t>(i)]);
    }
  }
}

}  // namespace stagecoach::testing::cuda
