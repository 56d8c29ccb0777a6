#ifndef STAGECOACH_BASE_TEXT_HUGGING_FACE_KEYS_H_
#define STAGECOACH_BASE_TEXT_HUGGING_FACE_KEYS_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/text/json.h"

namespace stagecoach::base {

// A config.json may only have known keys: each either affects what the model computes, and is then
// read and checked against what is supported here, or is known not to matter.

// Returns InvalidArgument naming the first key of `document` that `reader` was not asked for,
// unless its value is null.
absl::Status RefuseUnknownKeys(const nlohmann::json& document, ObjectReader& reader);

// Does the same for a whole config.json, ignoring the keys of all families that have no effect on
// what a model computes, and `others`, the ones of a single family.
absl::Status CheckOtherConfigKeys(const nlohmann::json& document, ObjectReader& reader,
                                  absl::Span<const char* const> others);

// Which layers see all positions before, and which have a window, as "layer_types" lists them.
struct WindowPattern {
  bool has_window = false;   // in some layer
  int64_t global_first = 0;  // the first N layers see all
  int64_t global_every = 0;  // of those behind them, every N-th; 0: none
};
// Reads that key. Nothing: it is absent or null. InvalidArgument: not one type for each of the
// `layers`, a type that is neither, or layers in another order.
absl::StatusOr<std::optional<WindowPattern>> ReadWindowPattern(const nlohmann::json& document,
                                                               ObjectReader& reader,
                                                               int64_t layers);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_HUGGING_FACE_KEYS_H_
