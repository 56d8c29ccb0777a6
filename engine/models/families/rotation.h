#ifndef STAGECOACH_ENGINE_MODELS_FAMILIES_ROTATION_H_
#define STAGECOACH_ENGINE_MODELS_FAMILIES_ROTATION_H_

#include <nlohmann/json_fwd.hpp>

#include "absl/status/status.h"
#include "base/text/json.h"
#include "engine/nn/layers/rotary.h"

namespace stagecoach::engine {

// How queries and keys are rotated by their positions, as a config.json says it.
struct Rotation {
  double base = 10000.0;
  double share = 1.0;  // of the numbers of a head
  RotaryScaling scaling;

  friend bool operator==(const Rotation&, const Rotation&) = default;
};

// What the rest of a config.json says about positions.
struct PositionsOfConfig {
  int64_t most = 0;      // max_position_embeddings
  int64_t original = 0;  // original_max_position_embeddings beside them, as Phi 3 has it; 0: none
  // Phi 3's earlier names of "longrope" are "su" and "yarn".
  bool is_phi3 = false;
};

// Reads "rope_scaling" or "rope_parameters", in which newer versions have all of it. What they do
// not say stays as it is in `rotation`.
absl::Status ReadRotation(const nlohmann::json& document, base::ObjectReader& reader,
                          const PositionsOfConfig& positions, Rotation& rotation);
// Reads the object under such a key.
absl::Status ReadRotationObject(base::ObjectReader reader, const nlohmann::json& document,
                                const PositionsOfConfig& positions, Rotation& rotation);
// Returns how many numbers of a head are rotated: 0 for all. InvalidArgument: no pairs, by the
// value of a key.
absl::StatusOr<int64_t> RotatedNumbers(const Rotation& rotation, int64_t head_size,
                                       const base::ObjectReader& reader, const char* key);
// Returns a share of a head from which transformers computes that number.
double RotaryShare(int64_t head_size, int64_t rotated);
// Returns the place in a head of ours of a number of theirs. In theirs, those come first that are
// rotated, in two halves. Ours has two halves of all, of which each is rotated in its first numbers
// (kernels/ops/attention.h).
int64_t PlaceInHead(int64_t head_size, int64_t rotated, int64_t number);

// Writes a scaling to "rope_scaling", if there is one, and with "dynamic" the original positions to
// "max_position_embeddings".
void WriteScaling(const RotaryScaling& scaling, nlohmann::ordered_json& config);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_MODELS_FAMILIES_ROTATION_H_
