#ifndef STAGECOACH_ENGINE_CHECKPOINT_ENCODING_JSON_H_
#define STAGECOACH_ENGINE_CHECKPOINT_ENCODING_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "base/text/json.h"
#include "engine/data/encoding.h"

// Returns the form of the data's encoding in a manifest.
namespace stagecoach::engine {

nlohmann::ordered_json ToJson(const DataEncoding& encoding);

// Is the inverse. InvalidArgument says where and what is wrong.
absl::StatusOr<DataEncoding> ParseEncoding(base::ObjectReader reader);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_ENCODING_JSON_H_
