#ifndef STAGECOACH_ENGINE_NN_LAYERS_ROW_BLOCKS_H_
#define STAGECOACH_ENGINE_NN_LAYERS_ROW_BLOCKS_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/text/json.h"
#include "engine/nn/block_order.h"
#include "engine/nn/layer.h"

namespace stagecoach::engine {

// A table with a row for each token, whose rows are cut into equal blocks that devices may share
// (EmbeddingOptions::blocks, HeadOptions::blocks).

// Returns the order of such a table.
BlockOrder RowBlocks(int blocks, int64_t rows);
// Returns InvalidArgument unless the blocks are a power of two, divide the rows, and can be divided
// among the parts of the context.
absl::Status CheckBlocks(int blocks, int64_t rows, const LayerContext& context);
// Returns the number "blocks" of an entry of a model file, or 1 if the rows cannot be cut so: all
// devices then have the whole table.
absl::StatusOr<int> ParseBlocks(int64_t rows, base::ObjectReader& reader);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_ROW_BLOCKS_H_
