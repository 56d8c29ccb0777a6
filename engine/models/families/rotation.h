#ifndef STAGECOACH_ENGINE_MODELS_FAMILIES_ROTATION_H_
#define STAGECOACH_ENGINE_MODELS_FAMILIES_ROTATION_H_

#include <nlohmann/json_fwd.hpp>

#include "absl/status/status.h"
#include "base/json.h"
#include "kernels/rotary_scaling.h"

namespace stagecoach::engine {

// How queries and keys are rotated by their positions, as a config.json says it.
struct Rotation {
  double base = 10000.0;
  double share = 1.0;  // of the numbers of a head
  kernels::RotaryScaling scaling;

  friend bool operator==(const Rotation&, const Rotation&) = default;
};

// Reads "rope_scaling" or "rope_parameters", in which newer versions have all of it. What they do
// not say stays as it is in `rotation`.
absl::Status ReadRotation(const nlohmann::json& document, base::ObjectReader& reader,
                          Rotation& rotation);
// Reads the object under such a key.
absl::Status ReadRotationObject(base::ObjectReader reader, const nlohmann::json& document,
                                Rotation& rotation);
// Writes a scaling to "rope_scaling", if there is one.
void WriteScaling(const kernels::RotaryScaling& scaling, nlohmann::ordered_json& config);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_FAMILIES_ROTATION_H_
