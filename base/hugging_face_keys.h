#ifndef STAGECOACH_BASE_HUGGING_FACE_KEYS_H_
#define STAGECOACH_BASE_HUGGING_FACE_KEYS_H_

#include <nlohmann/json_fwd.hpp>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/json.h"

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

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_HUGGING_FACE_KEYS_H_
