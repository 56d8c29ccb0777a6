#ifndef STAGECOACH_ENGINE_CHECKPOINT_ENCODING_JSON_H_
#define STAGECOACH_ENGINE_CHECKPOINT_ENCODING_JSON_H_

#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "base/json.h"
#include "engine/data/encoding.h"

// How a manifest has the encoding of the data.
namespace stagecoach::engine {

nlohmann::ordered_json ToJson(const DataEncoding& encoding);

// The inverse. InvalidArgument says where and what is wrong.
absl::StatusOr<DataEncoding> ParseEncoding(base::ObjectReader reader);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_CHECKPOINT_ENCODING_JSON_H_
