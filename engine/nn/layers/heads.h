#ifndef STAGECOACH_ENGINE_NN_LAYERS_HEADS_H_
#define STAGECOACH_ENGINE_NN_LAYERS_HEADS_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/nn/layer.h"

namespace stagecoach::engine {

// Returns the size D of a head if samples are [T, (H + 2 G) D]: at each position the queries of
// `heads` heads, then the keys of `kv_heads`, then their values. InvalidArgument, with the layer's
// name: there is no such D, or kv_heads do not divide heads.
absl::StatusOr<int64_t> HeadSizeOf(absl::string_view layer, int64_t heads, int64_t kv_heads,
                                   const Shape& input);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_NN_LAYERS_HEADS_H_
