#ifndef STAGECOACH_ENGINE_DEVICE_MESH_H_
#define STAGECOACH_ENGINE_DEVICE_MESH_H_

#include <cstddef>
#include <vector>

#include "schedule/action.h"

namespace stagecoach::engine {

// Which device each rank is on. A rank is a place in a schedule, the owner of stages (and, once
// stages have replicas, one replica of it); a device is what performs its list. Devices count from
// 0, without gaps. Regular value type.
class Mesh {
 public:
  // Rank i on device i.
  static Mesh OneDeviceEach(int ranks) {
    Mesh mesh;
    for (int rank = 0; rank < ranks; ++rank) mesh.device_of_rank_.push_back(rank);
    return mesh;
  }

  int num_ranks() const { return static_cast<int>(device_of_rank_.size()); }
  int num_devices() const { return num_ranks(); }
  // Pre-condition: `rank` is one of the mesh.
  int device_of(schedule::Rank rank) const {
    return device_of_rank_[static_cast<size_t>(rank.value())];
  }

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  std::vector<int> device_of_rank_;  // index: rank; all different
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_DEVICE_MESH_H_
