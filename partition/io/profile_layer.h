#ifndef STAGECOACH_PARTITION_IO_PROFILE_LAYER_H_
#define STAGECOACH_PARTITION_IO_PROFILE_LAYER_H_

#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/text/json.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/profile.h"

namespace stagecoach::partition {

// A layer as an entry of "layers" in a profile (profile_file.h).
struct FileLayer {
  std::vector<LayerCost> sizes;                   // one for each micro-batch size
  std::optional<std::vector<std::string>> after;  // names
  bool has_input_bytes = false;
};

// Reads a layer. Errors are those of ObjectReader. `reader`: that of `object`.
absl::StatusOr<FileLayer> ReadLayer(const nlohmann::json& object, base::ObjectReader reader,
                                    size_t sizes);

// Writes layer `index` of a profile with all its fields, but without "after".
nlohmann::ordered_json ToJson(const Profile& profile, size_t index);

// Returns a number for each size: as a list, or as one number if they are all the same.
template <typename T>
nlohmann::ordered_json OneOrAll(const std::vector<T>& values) {
  for (const T& value : values) {
    if (value != values.front()) return values;
  }
  return values.front();
}

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_IO_PROFILE_LAYER_H_
