#include "kernels/cpu/ops/few_rows.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/multiply_add.h"
#include "kernels/cpu/ops/tile_product.h"
#include "kernels/cpu/ops/tile_shape.h"

namespace stagecoach::kernels {
namespace {

// Rows of w whose piece of a panel of columns is packed at once: it stays in L1.
constexpr int64_t kPackedRows = 256;
// Rows of w that a single row of x is multiplied with at once, as its sums come from L1.
constexpr int64_t kRowsAtOnce = 8;
// Rows of a quantized w that are expanded at once: they have the same scales, and stay in L2.
constexpr int64_t kExpandedRows = kNf4Block;
// Rows of w that are widened at once.
constexpr int64_t kClassesAtOnce = kTileRows;

constexpr int64_t kLanes = kTileVectorBytes / static_cast<int64_t>(sizeof(float));
using Wide = float __attribute__((vector_size(kTileVectorBytes)));
using Words = uint32_t __attribute__((vector_size(kTileVectorBytes)));
using Halves = uint16_t __attribute__((vector_size(kTileVectorBytes / 2)));
using Narrow = float __attribute__((vector_size(16)));

Wide LoadWide(const float* from) {
  Wide vector;
  std::memcpy(&vector, from, sizeof(vector));
  return vector;
}
Wide LoadWide(const Bfloat16* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof(halves));
  const Words words = __builtin_convertvector(halves, Words) << 16;
  Wide vector;
  std::memcpy(&vector, &words, sizeof(vector));
  return vector;
}

// Adds `count` products to each of the sums z (columns).
template <int64_t kCount, typename T>
void AddRows(int64_t columns, const T* x, const T* w, int64_t ldw, float* z) {
  int64_t c = 0;
  for (; c + kLanes <= columns; c += kLanes) {
    Wide sum = LoadWide(z + c);
#pragma GCC unroll 8
    for (int64_t k = 0; k < kCount; ++k) {
      sum = MultiplyAdd<Wide>(x[k], LoadWide(w + k * ldw + c), sum);
    }
    std::memcpy(z + c, &sum, sizeof(sum));
  }
  for (; c < columns; ++c) {
    Narrow sum = {z[c]};
    for (int64_t k = 0; k < kCount; ++k) {
      sum = MultiplyAdd<Narrow>(x[k], Narrow{static_cast<float>(w[k * ldw + c])}, sum);
    }
    z[c] = sum[0];
  }
}

// Adds the products of one row to z: reads whole rows of w, in their order.
template <typename T>
void AddRowTimesWeights(int64_t columns, int64_t inputs, const T* x, const T* w, int64_t ldw,
                        float* z) {
  int64_t k = 0;
  for (; k + kRowsAtOnce <= inputs; k += kRowsAtOnce) {
    AddRows<kRowsAtOnce>(columns, x + k, w + k * ldw, ldw, z);
  }
  for (; k < inputs; ++k) AddRows<1>(columns, x + k, w + k * ldw, ldw, z);
}

// Copies `columns` columns of rows of w, at most kTileColumns. Those that come next in memory are
// fetched ahead, since their rows are far apart.
template <typename T>
void PackPanel(int64_t rows, int64_t columns, const T* w, int64_t ldw, float* panel) {
  constexpr int64_t kLine = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t k = 0; k < rows; ++k, w += ldw, panel += kTileColumns) {
    for (int64_t ahead = 0; ahead < kTileColumns; ahead += kLine) {
      __builtin_prefetch(w + kTileColumns + ahead, 0, 2);
    }
    if (columns < kTileColumns) {
      Convert(w, columns, panel);
      continue;
    }
    for (int64_t c = 0; c < kTileColumns; c += kLanes) {
      const Wide vector = LoadWide(w + c);
      std::memcpy(panel + c, &vector, sizeof(vector));
    }
  }
}

// Returns n values in float32: those of x, which are converted to `scratch` if they are others.
template <typename T>
const float* Floats(const T* x, int64_t n, float* scratch) {
  if constexpr (kIsFloat<T>) {
    return x;
  } else {
    Convert(x, n, scratch);
    return scratch;
  }
}

}  // namespace

template <typename T>
int64_t RowsTimesWeightsScratch(int64_t rows, int64_t inputs) {
  if (rows == 1) return 0;
  return kPackedRows * kTileColumns + (kIsFloat<T> ? 0 : rows * inputs);
}

template <typename T>
void RowsTimesWeights(int64_t rows, int64_t columns, int64_t inputs, const T* x, const T* w,
                      int64_t ldw, float* z, int64_t ldz, float* scratch) {
  if (rows == 1) {
    std::fill_n(z, columns, 0.0F);
    return AddRowTimesWeights(columns, inputs, x, w, ldw, z);
  }
  float* const panel = scratch;
  const float* const factors = Floats(x, rows * inputs, panel + kPackedRows * kTileColumns);
  for (int64_t c = 0; c < columns; c += kTileColumns) {
    const int64_t own_columns = std::min(kTileColumns, columns - c);
    for (int64_t k = 0; k < inputs; k += kPackedRows) {
      const int64_t own_inputs = std::min(kPackedRows, inputs - k);
      PackPanel(own_inputs, own_columns, w + k * ldw + c, ldw, panel);
      TileProduct(rows, own_columns, own_inputs, {factors + k, inputs, 1}, {panel, kTileColumns},
                  /*accumulate=*/k > 0, z + c, ldz);
    }
  }
}

template <typename T>
int64_t RowsTimesQuantizedScratch(int64_t rows, int64_t columns, int64_t inputs) {
  const int64_t floats_of_x = rows == 1 || kIsFloat<T> ? 0 : rows * inputs;
  const int64_t panel = rows == 1 ? 0 : kExpandedRows * kTileColumns;
  return kExpandedRows * columns + panel + floats_of_x;  // wide enough for either T
}

template <typename T>
void RowsTimesQuantized(int64_t rows, int64_t columns, int64_t inputs, const T* x,
                        const QuantizedTile& w, const std::byte* stored, int64_t first, float* z,
                        int64_t ldz, float* scratch) {
  T* const piece = reinterpret_cast<T*>(scratch);
  float* const panel = scratch + kExpandedRows * columns;
  const float* factors = nullptr;
  if (rows == 1) {
    std::fill_n(z, columns, 0.0F);
  } else {
    factors = Floats(x, rows * inputs, panel + kExpandedRows * kTileColumns);
  }
  for (int64_t k = 0; k < inputs; k += kExpandedRows) {
    const int64_t own_inputs = std::min(kExpandedRows, inputs - k);
    w.Expand(stored, {k, own_inputs}, {first, columns}, piece, columns);
    if (rows == 1) {
      AddRowTimesWeights(columns, own_inputs, x + k, piece, columns, z);
      continue;
    }
    for (int64_t c = 0; c < columns; c += kTileColumns) {
      const int64_t own_columns = std::min(kTileColumns, columns - c);
      PackPanel(own_inputs, own_columns, piece + c, columns, panel);
      TileProduct(rows, own_columns, own_inputs, {factors + k, inputs, 1}, {panel, kTileColumns},
                  /*accumulate=*/k > 0, z + c, ldz);
    }
  }
}

template <typename T>
int64_t WeightsTimesRowsScratch(int64_t features) {
  return kIsFloat<T> ? 0 : kClassesAtOnce * features;
}

template <typename T>
void WeightsTimesRows(int64_t classes, int64_t rows, int64_t features, const T* w, const float* x,
                      float* z, int64_t ldx, float* scratch) {
  if constexpr (kIsFloat<T>) {
    const TileOperand a = {.data = w, .row = features, .column = 1, .from_memory = true};
    TileProduct(classes, rows, features, a, {x, ldx}, /*accumulate=*/false, z, ldx);
  } else {
    for (int64_t c = 0; c < classes; c += kClassesAtOnce) {
      const int64_t own = std::min(kClassesAtOnce, classes - c);
      Convert(w + c * features, own * features, scratch);
      TileProduct(own, rows, features, {scratch, features, 1}, {x, ldx}, /*accumulate=*/false,
                  z + c * ldx, ldx);
    }
  }
}

template int64_t RowsTimesWeightsScratch<float>(int64_t, int64_t);
template int64_t RowsTimesWeightsScratch<Bfloat16>(int64_t, int64_t);
template void RowsTimesWeights(int64_t, int64_t, int64_t, const float*, const float*, int64_t,
                               float*, int64_t, float*);
template void RowsTimesWeights(int64_t, int64_t, int64_t, const Bfloat16*, const Bfloat16*, int64_t,
                               float*, int64_t, float*);
template int64_t RowsTimesQuantizedScratch<float>(int64_t, int64_t, int64_t);
template int64_t RowsTimesQuantizedScratch<Bfloat16>(int64_t, int64_t, int64_t);
template void RowsTimesQuantized(int64_t, int64_t, int64_t, const float*, const QuantizedTile&,
                                 const std::byte*, int64_t, float*, int64_t, float*);
template void RowsTimesQuantized(int64_t, int64_t, int64_t, const Bfloat16*, const QuantizedTile&,
                                 const std::byte*, int64_t, float*, int64_t, float*);
template int64_t WeightsTimesRowsScratch<float>(int64_t);
template int64_t WeightsTimesRowsScratch<Bfloat16>(int64_t);
template void WeightsTimesRows(int64_t, int64_t, int64_t, const float*, const float*, float*,
                               int64_t, float*);
template void WeightsTimesRows(int64_t, int64_t, int64_t, const Bfloat16*, const float*, float*,
                               int64_t, float*);

}  // namespace stagecoach::kernels
