#include "engine/nn/layers/row_blocks.h"

#include <bit>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace stagecoach::engine {

BlockOrder RowBlocks(int blocks, int64_t rows) {
  return {.blocks = blocks, .axis = 0, .extents = {rows}};
}

absl::Status CheckBlocks(int blocks, int64_t rows, const LayerContext& context) {
  if (blocks == 1) return absl::OkStatus();
  RETURN_IF_ERROR(CheckTensorBlocks(blocks, context.part));
  if (rows % blocks == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(rows, " rows cannot be cut into ", blocks, " equal blocks"));
}

absl::StatusOr<int> ParseBlocks(int64_t rows, base::ObjectReader& reader) {
  ASSIGN_OR_RETURN(const int64_t blocks,
                   reader.OptionalInt64("blocks", 1, {.min = 1, .max = kMostTensorBlocks}));
  return rows % blocks == 0 ? static_cast<int>(blocks) : 1;
}

}  // namespace stagecoach::engine
