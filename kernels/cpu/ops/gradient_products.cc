#include "kernels/cpu/ops/gradient_products.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/ops/images/transpose.h"
#include "kernels/cpu/ops/tile_product.h"
#include "kernels/cpu/ops/tile_shape.h"

namespace stagecoach::kernels {
namespace {

// The number of values of a packed operand that is read again and again: together with the other
// data that pass through, they stay in an L2 of 1 MiB.
constexpr int64_t kPackedValues = int64_t{150} << 10;
// The most rows of dz whose input gradient is summed at once.
constexpr int64_t kMostRows = 256;
// The most rows that a pass over dw adds.
constexpr int64_t kMostAddedRows = 128;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Divides an extent into as few pieces of at most `most` as possible, of about equal length, and
// returns that: a multiple of `unit`. The last piece may be shorter.
int64_t PieceOf(int64_t extent, int64_t most, int64_t unit) {
  const int64_t pieces = DivideUp(extent, std::max(most / unit, int64_t{1}) * unit);
  return DivideUp(DivideUp(extent, pieces), unit) * unit;
}

// Calls function(first, length) for each piece.
template <typename Function>
void ForEachPiece(int64_t extent, int64_t piece, Function function) {
  for (int64_t first = 0; first < extent; first += piece) {
    function(first, std::min(piece, extent - first));
  }
}

int64_t RowsAtOnce(int64_t rows) { return PieceOf(rows, kMostRows, kTileColumns); }
int64_t OutputsAtOnce(int64_t rows, int64_t outputs) {
  return PieceOf(outputs, kPackedValues / RowsAtOnce(rows), 16);
}

int64_t AddedRows(int64_t rows) { return PieceOf(rows, kMostAddedRows, 1); }
int64_t InputsAtOnce(int64_t rows, int64_t inputs) {
  return PieceOf(inputs, kPackedValues / 2 / AddedRows(rows), kTileRows);
}
int64_t OutputsOfPanels(int64_t rows, int64_t outputs) {
  return PieceOf(outputs, kPackedValues / AddedRows(rows), kTileColumns);
}

// Divides the columns of a matrix into panels of kColumns, each of which has all rows one after the
// other. It works in blocks of rows, so that the lines that two panels share are read once, and
// those that two rows share are written once.
template <int64_t kColumns>
void Pack(int64_t rows, int64_t columns, const float* from, int64_t ld, float* to) {
  ForEachPiece(rows, 16, [&](int64_t r0, int64_t own_rows) {
    const float* const first = from + r0 * ld;
    int64_t c = 0;
    for (; c + kColumns <= columns; c += kColumns) {
      float* const panel = to + c * rows + r0 * kColumns;
      for (int64_t r = 0; r < own_rows; ++r) {
        std::memcpy(panel + r * kColumns, first + r * ld + c, kColumns * sizeof(float));
      }
    }
    for (int64_t r = 0; r < own_rows; ++r) {
      for (int64_t i = 0; c + i < columns; ++i) {
        to[c * rows + (r0 + r) * kColumns + i] = first[r * ld + c + i];
      }
    }
  });
}

}  // namespace

int64_t InputGradientScratch(int64_t rows, int64_t inputs, int64_t outputs) {
  const int64_t at_once = RowsAtOnce(rows);
  return at_once * (OutputsAtOnce(rows, outputs) + inputs);
}

void InputGradient(int64_t rows, int64_t inputs, int64_t outputs, const float* dz, const float* w,
                   float* dx, int64_t lddx, float* scratch) {
  const int64_t rows_at_once = RowsAtOnce(rows);
  const int64_t outputs_at_once = OutputsAtOnce(rows, outputs);
  float* const panels = scratch;  // of dz transposed: (outputs, kTileColumns rows) each
  float* const dx_transposed = scratch + rows_at_once * outputs_at_once;
  ForEachPiece(rows, rows_at_once, [&](int64_t r0, int64_t own_rows) {
    ForEachPiece(outputs, outputs_at_once, [&](int64_t o0, int64_t own_outputs) {
      ForEachPiece(own_rows, kTileColumns, [&](int64_t r, int64_t n) {
        Transpose(dz + (r0 + r) * outputs + o0, outputs, n, own_outputs,
                  panels + r * outputs_at_once, kTileColumns);
      });
      // Rows of w are read once, from memory, while the panels stay in the cache.
      ForEachPiece(inputs, kTileRows, [&](int64_t i, int64_t m) {
        const TileOperand a = {
            .data = w + i * outputs + o0, .row = outputs, .column = 1, .from_memory = true};
        TileProduct(m, own_rows, own_outputs, a,
                    {panels, kTileColumns, outputs_at_once * kTileColumns},
                    /*accumulate=*/o0 > 0, dx_transposed + i * rows_at_once, rows_at_once);
      });
    });
    Transpose(dx_transposed, rows_at_once, inputs, own_rows, dx + r0 * lddx, lddx);
  });
}

int64_t WeightGradientScratch(int64_t rows, int64_t inputs, int64_t outputs) {
  return AddedRows(rows) * (InputsAtOnce(rows, inputs) + OutputsOfPanels(rows, outputs));
}

void WeightGradient(int64_t rows, int64_t inputs, int64_t outputs, const float* x, int64_t ldx,
                    const float* dz, bool accumulate, float* dw, float* scratch) {
  const int64_t added_rows = AddedRows(rows);
  const int64_t inputs_at_once = InputsAtOnce(rows, inputs);
  const int64_t outputs_at_once = OutputsOfPanels(rows, outputs);
  float* const blocks = scratch;  // of x transposed: (rows, kTileRows inputs) each
  float* const panels = scratch + added_rows * inputs_at_once;  // (rows, kTileColumns outputs) each
  ForEachPiece(rows, added_rows, [&](int64_t r0, int64_t own_rows) {
    const bool adds = accumulate || r0 > 0;
    ForEachPiece(outputs, outputs_at_once, [&](int64_t o0, int64_t own_outputs) {
      Pack<kTileColumns>(own_rows, own_outputs, dz + r0 * outputs + o0, outputs, panels);
      ForEachPiece(inputs, inputs_at_once, [&](int64_t i0, int64_t own_inputs) {
        Pack<kTileRows>(own_rows, own_inputs, x + r0 * ldx + i0, ldx, blocks);
        ForEachPiece(own_inputs, kTileRows, [&](int64_t i, int64_t m) {
          const TileOperand a = {.data = blocks + i * own_rows, .row = 1, .column = kTileRows};
          TileProduct(m, own_outputs, own_rows, a, {panels, kTileColumns, own_rows * kTileColumns},
                      adds, dw + (i0 + i) * outputs + o0, outputs);
        });
      });
    });
  });
}

}  // namespace stagecoach::kernels
