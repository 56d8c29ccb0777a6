#ifndef STAGECOACH_ENGINE_RUNTIME_DEVICE_MESH_H_
#define STAGECOACH_ENGINE_RUNTIME_DEVICE_MESH_H_

#include "schedule/ir/action.h"

namespace stagecoach::engine {

// Maps ranks and replicas to devices. A rank is a place in a schedule, the owner of stages; each
// replica has one device for every rank. Devices count from 0: those of a rank one after the other,
// in the order of replicas. Regular value type.
class Mesh {
 public:
  Mesh(int ranks, int replicas) : ranks_(ranks), replicas_(replicas) {}

  int num_ranks() const { return ranks_; }
  int num_replicas() const { return replicas_; }
  int num_devices() const { return ranks_ * replicas_; }
  // Pre-condition for the following: the arguments are of the mesh.
  int device_of(schedule::Rank rank, int replica) const {
    return rank.value() * replicas_ + replica;
  }
  schedule::Rank rank_of(int device) const { return schedule::Rank(device / replicas_); }
  int replica_of(int device) const { return device % replicas_; }

  friend bool operator==(const Mesh&, const Mesh&) = default;

 private:
  int ranks_, replicas_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_DEVICE_MESH_H_
