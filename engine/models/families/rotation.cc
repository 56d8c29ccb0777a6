#include "engine/models/families/rotation.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/hugging_face_keys.h"
#include "base/status_macros.h"
#include "engine/models/families/family.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;

absl::StatusOr<kernels::RotaryScaling> ReadLlama3Scaling(ObjectReader& reader) {
  kernels::RotaryScaling scaling;
  ASSIGN_OR_RETURN(scaling.factor, reader.RequiredDouble("factor"));
  ASSIGN_OR_RETURN(scaling.low_turns, reader.RequiredDouble("low_freq_factor"));
  ASSIGN_OR_RETURN(scaling.high_turns, reader.RequiredDouble("high_freq_factor"));
  ASSIGN_OR_RETURN(scaling.original_positions,
                   reader.RequiredInt64("original_max_position_embeddings", kTransformerExtents));
  return scaling;
}

}  // namespace

absl::Status ReadRotationObject(ObjectReader reader, const nlohmann::json& document,
                                Rotation& rotation) {
  ASSIGN_OR_RETURN(std::string type, reader.OptionalString("type", "default"));
  const char* const key = reader.Has("rope_type") ? "rope_type" : "type";
  ASSIGN_OR_RETURN(type, reader.OptionalString("rope_type", type));
  if (type == "linear") {
    ASSIGN_OR_RETURN(rotation.scaling.factor, reader.RequiredDouble("factor"));
  } else if (type == "llama3") {
    ASSIGN_OR_RETURN(rotation.scaling, ReadLlama3Scaling(reader));
  } else if (type != "default") {
    return reader.Error(
        key, absl::StrCat("is \"", type, "\", expected \"default\", \"linear\" or \"llama3\""));
  }
  if (!IsRotaryScaling(rotation.scaling)) {
    return reader.Error("factor",
                        "expected at least 1, and a low_freq_factor below high_freq_factor");
  }
  ASSIGN_OR_RETURN(rotation.base, reader.OptionalDouble("rope_theta", rotation.base));
  ASSIGN_OR_RETURN(rotation.share, reader.OptionalDouble("partial_rotary_factor", rotation.share,
                                                         {.min = 0.0, .max = 1.0}));
  return base::RefuseUnknownKeys(document, reader);
}

absl::Status ReadRotation(const nlohmann::json& document, ObjectReader& reader,
                          Rotation& rotation) {
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.Has(key) || document[key].is_null()) continue;
    ASSIGN_OR_RETURN(ObjectReader own, reader.RequiredObject(key));
    RETURN_IF_ERROR(ReadRotationObject(std::move(own), document[key], rotation));
  }
  return absl::OkStatus();
}

void WriteScaling(const kernels::RotaryScaling& scaling, nlohmann::ordered_json& config) {
  if (scaling.factor == 1.0) return;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", scaling.factor}};
  if (scaling.original_positions > 0) {
    config["rope_scaling"] = {{"rope_type", "llama3"},
                              {"factor", scaling.factor},
                              {"low_freq_factor", scaling.low_turns},
                              {"high_freq_factor", scaling.high_turns},
                              {"original_max_position_embeddings", scaling.original_positions}};
  }
}

}  // namespace stagecoach::engine
