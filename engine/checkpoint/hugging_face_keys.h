#ifndef STAGECOACH_ENGINE_CHECKPOINT_HUGGING_FACE_KEYS_H_
#define STAGECOACH_ENGINE_CHECKPOINT_HUGGING_FACE_KEYS_H_

#include <nlohmann/json_fwd.hpp>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/json.h"

namespace stagecoach::engine {

// A config.json may only have keys that are known: each either decides what the model computes, and
// is then read and compared with what there is here, or is known to have no part in that.

// InvalidArgument names the first key of `document` that `reader` was not asked for, unless its
// value is null.
absl::Status RefuseUnknownKeys(const nlohmann::json& document, base::ObjectReader& reader);

// The same of a whole config.json, but for the keys of all families that have no part in what a
// model computes, and for `others`, those of one family.
absl::Status CheckOtherConfigKeys(const nlohmann::json& document, base::ObjectReader& reader,
                                  absl::Span<const char* const> others);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_HUGGING_FACE_KEYS_H_
