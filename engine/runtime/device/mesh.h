#ifndef STAGECOACH_ENGINE_RUNTIME_DEVICE_MESH_H_
#define STAGECOACH_ENGINE_RUNTIME_DEVICE_MESH_H_

#include "schedule/ir/action.h"

namespace stagecoach::engine {

// Maps ranks, replicas and parts to devices. A rank is a place in a schedule, the owner of stages;
// each replica has a group of devices for every rank, which perform its list together: each
// computes its part of the layers that are cut (TensorPart), and all others alike. Devices count
// from 0: those of a rank one after the other, in the order of replicas, and those of a replica in
// the order of parts. Regular value type.
//
// The devices of one replica and one part, one for each rank, are a column: they send one another
// what passes from stage to stage.
class Mesh {
 public:
  explicit Mesh(int ranks, int replicas = 1, int parts = 1)
      : ranks_(ranks), replicas_(replicas), parts_(parts) {}

  int num_ranks() const { return ranks_; }
  int num_replicas() const { return replicas_; }
  int num_parts() const { return parts_; }
  int num_columns() const { return replicas_ * parts_; }
  int num_devices() const { return ranks_ * num_columns(); }
  // Pre-condition for the following: the arguments are of the mesh.
  int device_of(schedule::Rank rank, int replica, int part = 0) const {
    return (rank.value() * replicas_ + replica) * parts_ + part;
  }
  schedule::Rank rank_of(int device) const { return schedule::Rank(device / num_columns()); }
  int replica_of(int device) const { return device / parts_ % replicas_; }
  int part_of(int device) const { return device % parts_; }
  int column_of(int device) const { return device % num_columns(); }

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  int ranks_, replicas_, parts_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_DEVICE_MESH_H_
