#include "kernels/ops/dequantize.h"

#include <memory>

#include "base/status_macros.h"
#include "kernels/cpu/ops/cpu_ops.h"
#include "kernels/cpu/ops/element.h"
#include "kernels/cpu/ops/quantized_tile.h"

namespace stagecoach::kernels {
namespace {

template <typename T>
class CpuDequantize final : public DequantizeOp {
 public:
  explicit CpuDequantize(const QuantizedMatrix& matrix)
      : outputs_(matrix.outputs),
        tile_(matrix),
        row_tiles_(matrix.inputs, kNf4Block),
        column_tiles_(outputs_, QuantizedTile::kMostColumns) {}

  absl::Status Run(Stream& stream, const Tensor& stored, const Tensor& values) override {
    const int tiles = row_tiles_.count * column_tiles_.count;
    AsCpu(stream).ParallelFor(tiles, [&](int tile, int) {
      const int row_tile = tile / column_tiles_.count, column_tile = tile % column_tiles_.count;
      const int64_t row = row_tiles_.begin(row_tile), column = column_tiles_.begin(column_tile);
      tile_.Expand(static_cast<const std::byte*>(stored.data), {row, row_tiles_.length(row_tile)},
                   {column, column_tiles_.length(column_tile)},
                   Elements<T>(values) + row * outputs_ + column, outputs_);
    });
    return absl::OkStatus();
  }

 private:
  const int64_t outputs_;
  const QuantizedTile tile_;
  const Tiling row_tiles_, column_tiles_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<DequantizeOp>> CreateOnCpu(const DequantizeShape& shape,
                                                          Device& device) {
  RETURN_IF_ERROR(CheckQuantizedMatrix(shape.matrix, kMaxExtent));
  return ForActivationType(device, [&]<typename T>(T) -> std::unique_ptr<DequantizeOp> {
    return std::make_unique<CpuDequantize<T>>(shape.matrix);
  });
}

}  // namespace stagecoach::kernels
