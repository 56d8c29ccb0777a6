#include "engine/models/families/rotation.h"

#include <cmath>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/text/hugging_face_keys.h"
#include "engine/models/families/family.h"

namespace stagecoach::engine {
namespace {

using base::ObjectReader;

// Returns whether a key has a value. Counts as a use of the key.
bool HasNumber(const nlohmann::json& document, ObjectReader& reader, const char* key) {
  return reader.Has(key) && !document[key].is_null();
}

// Reads a number that may be absent, null, or, as in transformers, 0.
absl::StatusOr<double> NumberOr(const nlohmann::json& document, ObjectReader& reader,
                                const char* key, double otherwise) {
  if (!HasNumber(document, reader, key)) return otherwise;
  ASSIGN_OR_RETURN(const double number, reader.RequiredDouble(key));
  return number == 0.0 ? otherwise : number;
}

absl::Status ReadLlama3Scaling(ObjectReader& reader, RotaryScaling& scaling) {
  ASSIGN_OR_RETURN(scaling.factor, reader.RequiredDouble("factor"));
  ASSIGN_OR_RETURN(scaling.low_turns, reader.RequiredDouble("low_freq_factor"));
  ASSIGN_OR_RETURN(scaling.high_turns, reader.RequiredDouble("high_freq_factor"));
  ASSIGN_OR_RETURN(scaling.original_positions,
                   reader.RequiredInt64("original_max_position_embeddings", kTransformerExtents));
  return absl::OkStatus();
}

// Reads the positions of the original training, and the factor by which there are more.
absl::Status ReadOriginal(const nlohmann::json& document, ObjectReader& reader,
                          const PositionsOfConfig& positions, RotaryScaling& scaling,
                          double& factor) {
  constexpr char kOriginal[] = "original_max_position_embeddings";
  scaling.original_positions = positions.most;
  if (HasNumber(document, reader, kOriginal)) {
    ASSIGN_OR_RETURN(scaling.original_positions,
                     reader.RequiredInt64(kOriginal, kTransformerExtents));
  }
  // These take precedence.
  if (positions.original != 0) scaling.original_positions = positions.original;
  const double ratio =
      static_cast<double>(positions.most) / static_cast<double>(scaling.original_positions);
  ASSIGN_OR_RETURN(factor, NumberOr(document, reader, "factor", ratio));
  return absl::OkStatus();
}

// The scale of rotations that is usual for a factor, and how much of it is wanted.
double ScaleOf(double factor, double share) {
  return factor <= 1.0 ? 1.0 : 0.1 * share * std::log(factor) + 1.0;
}

absl::Status ReadYarn(const nlohmann::json& document, ObjectReader& reader,
                      const PositionsOfConfig& positions, RotaryScaling& scaling) {
  scaling.kind = RotaryKind::kYarn;
  RETURN_IF_ERROR(ReadOriginal(document, reader, positions, scaling, scaling.factor));
  ASSIGN_OR_RETURN(scaling.low_turns, NumberOr(document, reader, "beta_slow", 1.0));
  ASSIGN_OR_RETURN(scaling.high_turns, NumberOr(document, reader, "beta_fast", 32.0));
  ASSIGN_OR_RETURN(scaling.truncates, reader.OptionalBool("truncate", true));
  ASSIGN_OR_RETURN(const double share, NumberOr(document, reader, "mscale", 0.0));
  ASSIGN_OR_RETURN(const double of_all, NumberOr(document, reader, "mscale_all_dim", 0.0));
  const double usual = share != 0.0 && of_all != 0.0
                           ? ScaleOf(scaling.factor, share) / ScaleOf(scaling.factor, of_all)
                           : ScaleOf(scaling.factor, 1.0);
  ASSIGN_OR_RETURN(scaling.scale, NumberOr(document, reader, "attention_factor", usual));
  return absl::OkStatus();
}

absl::Status ReadLongRope(const nlohmann::json& document, ObjectReader& reader,
                          const PositionsOfConfig& positions, RotaryScaling& scaling) {
  scaling.kind = RotaryKind::kLongRope;
  double factor = 1.0;
  RETURN_IF_ERROR(ReadOriginal(document, reader, positions, scaling, factor));
  for (const auto& [key, divisors] : {std::pair("short_factor", &scaling.short_divisors),
                                      std::pair("long_factor", &scaling.long_divisors)}) {
    ASSIGN_OR_RETURN(const base::ArrayReader entries, reader.RequiredArray(key));
    for (size_t i = 0; i < entries.size(); ++i) {
      ASSIGN_OR_RETURN(divisors->emplace_back(), entries.Double(i));
    }
  }
  const double usual =
      factor <= 1.0
          ? 1.0
          : std::sqrt(1.0 +
                      std::log(factor) / std::log(static_cast<double>(scaling.original_positions)));
  ASSIGN_OR_RETURN(scaling.scale, NumberOr(document, reader, "attention_factor", usual));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRotationObject(ObjectReader reader, const nlohmann::json& document,
                                const PositionsOfConfig& positions, Rotation& rotation) {
  ASSIGN_OR_RETURN(std::string type, reader.OptionalString("type", "default"));
  const char* const key = reader.Has("rope_type") ? "rope_type" : "type";
  ASSIGN_OR_RETURN(type, reader.OptionalString("rope_type", type));
  if (positions.is_phi3 && (type == "su" || type == "yarn")) type = "longrope";
  RotaryScaling& scaling = rotation.scaling;
  if (type == "linear" || type == "dynamic") {
    ASSIGN_OR_RETURN(scaling.factor, reader.RequiredDouble("factor"));
    if (type == "dynamic") {
      scaling.kind = RotaryKind::kDynamic;
      scaling.original_positions = positions.most;
      reader.Has("original_max_position_embeddings");  // transformers does not read it
    }
  } else if (type == "llama3") {
    RETURN_IF_ERROR(ReadLlama3Scaling(reader, scaling));
  } else if (type == "yarn") {
    RETURN_IF_ERROR(ReadYarn(document, reader, positions, scaling));
  } else if (type == "longrope") {
    RETURN_IF_ERROR(ReadLongRope(document, reader, positions, scaling));
  } else if (type != "default") {
    return reader.Error(key, absl::StrCat("is \"", type,
                                          "\", expected \"default\", \"linear\", \"llama3\", "
                                          "\"yarn\", \"longrope\" or \"dynamic\""));
  }
  const absl::Status checked = CheckRotaryScaling(scaling);
  if (!checked.ok()) return reader.Error(key, checked.message());
  ASSIGN_OR_RETURN(rotation.base, reader.OptionalDouble("rope_theta", rotation.base));
  ASSIGN_OR_RETURN(rotation.share, reader.OptionalDouble("partial_rotary_factor", rotation.share,
                                                         {.min = 0.0, .max = 1.0}));
  return base::RefuseUnknownKeys(document, reader);
}

absl::Status ReadRotation(const nlohmann::json& document, ObjectReader& reader,
                          const PositionsOfConfig& positions, Rotation& rotation) {
  for (const char* const key : {"rope_scaling", "rope_parameters"}) {
    if (!reader.Has(key) || document[key].is_null()) continue;
    ASSIGN_OR_RETURN(ObjectReader own, reader.RequiredObject(key));
    RETURN_IF_ERROR(ReadRotationObject(std::move(own), document[key], positions, rotation));
  }
  return absl::OkStatus();
}

absl::StatusOr<int64_t> RotatedNumbers(const Rotation& rotation, int64_t head_size,
                                       const ObjectReader& reader, const char* key) {
  const auto rotated = static_cast<int64_t>(static_cast<double>(head_size) * rotation.share);
  if (rotated < 2 || rotated % 2 != 0) {
    return reader.Error(key, absl::StrCat("rotates ", rotated, " of the ", head_size,
                                          " numbers of a head, expected pairs of them"));
  }
  return rotated == head_size ? 0 : rotated;
}

double RotaryShare(int64_t head_size, int64_t rotated) {
  if (rotated == 0) return 1.0;
  const auto of_all = static_cast<double>(head_size);
  const auto own = static_cast<double>(rotated);
  const double share = own / of_all;
  return of_all * share < own ? std::nextafter(share, 1.0) : share;
}

int64_t PlaceInHead(int64_t head_size, int64_t rotated, int64_t number) {
  if (rotated == 0) return number;
  const bool is_rotated = number < rotated;
  const int64_t half = (is_rotated ? rotated : head_size - rotated) / 2;
  const int64_t j = is_rotated ? number : number - rotated;
  return j / half * (head_size / 2) + j % half + (is_rotated ? 0 : rotated / 2);
}

void WriteScaling(const RotaryScaling& scaling, nlohmann::ordered_json& config) {
  if (scaling.is_none()) return;
  constexpr char kOriginal[] = "original_max_position_embeddings";
  nlohmann::ordered_json& own = config["rope_scaling"];
  switch (scaling.kind) {
    case RotaryKind::kLinear:
      own = {{"rope_type", "linear"}, {"factor", scaling.factor}};
      if (scaling.original_positions == 0) return;
      own = {{"rope_type", "llama3"},
             {"factor", scaling.factor},
             {"low_freq_factor", scaling.low_turns},
             {"high_freq_factor", scaling.high_turns},
             {kOriginal, scaling.original_positions}};
      return;
    case RotaryKind::kYarn:
      own = {{"rope_type", "yarn"},
             {"factor", scaling.factor},
             {"beta_slow", scaling.low_turns},
             {"beta_fast", scaling.high_turns},
             {"truncate", scaling.truncates},
             {"attention_factor", scaling.scale},
             {kOriginal, scaling.original_positions}};
      return;
    case RotaryKind::kLongRope:
      own = {{"rope_type", "longrope"},
             {"short_factor", scaling.short_divisors},
             {"long_factor", scaling.long_divisors},
             {"attention_factor", scaling.scale},
             {kOriginal, scaling.original_positions}};
      return;
    case RotaryKind::kDynamic:
      own = {{"rope_type", "dynamic"}, {"factor", scaling.factor}};
      config["max_position_embeddings"] = scaling.original_positions;
      return;
  }
}

}  // namespace stagecoach::engine
