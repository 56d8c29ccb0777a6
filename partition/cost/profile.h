#ifndef STAGECOACH_PARTITION_COST_PROFILE_H_
#define STAGECOACH_PARTITION_COST_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/stage_memory.h"
#include "partition/cost/tie.h"
#include "schedule/simulate/costs.h"

namespace stagecoach::partition {

// The layers of a model at one micro-batch size.
struct SizedLayers {
  int64_t micro_batch_rows = 1;
  std::vector<LayerCost> layers;
  int64_t feed_bytes_per_micro_batch = 0;   // its inputs, if they are copied ahead; else 0
  int64_t loss_workspace_bytes = 0;         // scratch while the loss is computed
  int64_t loss_bytes_per_micro_batch = 0;   // its targets and results, kept for the whole step
  int64_t stage_bytes_per_micro_batch = 0;  // what every stage is told of its samples, likewise

  EndMemory ends(int micro_batches) const {
    return {.feed_resident_bytes = AlignTensor(micro_batches * feed_bytes_per_micro_batch),
            .loss_workspace_bytes = loss_workspace_bytes,
            .loss_resident_bytes = AlignTensor(micro_batches * loss_bytes_per_micro_batch),
            .stage_resident_bytes = AlignTensor(micro_batches * stage_bytes_per_micro_batch)};
  }
  friend bool operator==(const SizedLayers&, const SizedLayers&) = default;
};

// One layer's use of another's output. Indices into SizedLayers::layers, producer < consumer.
struct Edge {
  int producer = 0;
  int consumer = 0;

  friend bool operator==(const Edge&, const Edge&) = default;
};

// The time that a run takes beyond the passes of its layers, measured together with them. 0 if
// unknown.
struct Overheads {
  double message_ns = 0.0;  // from the arrival of a message until the rank that awaits it computes
  double step_ns = 0.0;     // of a step, before its first pass and after its last
  schedule::HostLink host_link = {};  // of the device, for stashes that are moved to the host

  friend bool operator==(const Overheads&, const Overheads&) = default;
};

// Everything that a planner knows of a model: a chain of layers, or a directed acyclic graph of
// them.
struct Profile {
  std::string model;               // for people
  std::vector<SizedLayers> sizes;  // at least one; ascending micro_batch_rows
  std::vector<Edge> edges;         // empty: a chain, each layer reads the one before it
  // True if a layer is updated within the backward pass of the last micro-batch, as soon as its
  // gradients are complete (this engine, unless it clips them); otherwise updates follow all
  // passes.
  bool updates_in_backward = false;
  schedule::CollectiveMemory collectives;  // those of the runs that the profile is for
  std::vector<Tie> ties;                   // layers that share a parameter
  Overheads overheads;

  int num_layers() const { return static_cast<int>(sizes.front().layers.size()); }
  bool is_chain() const { return edges.empty(); }
  friend bool operator==(const Profile&, const Profile&) = default;
};

inline constexpr int kMaxLayers = 100'000;
inline constexpr int kMaxEdges = 1'000'000;
inline constexpr int kMaxSizes = 256;
inline constexpr int kMaxLayerCosts = 1'000'000;  // layers * sizes
inline constexpr int64_t kMaxMicroBatchRows = int64_t{1} << 32;

// Returns InvalidArgument, naming size, layer and field, unless there is a size, sizes ascend, each
// has the same layers (names, parameters, last uses, and whether they can repeat F), names are
// unique and not empty, every layer passes CheckLayers, no time exceeds schedule::kMaxTimeNs,
// no overhead is negative,
// counts are within their limits, and edges and ties lead forward between existing layers, without
// duplicates.
absl::Status CheckProfile(const Profile& profile);

// Returns the layers at a micro-batch size of `rows`: those of that size if the profile has it,
// otherwise those of the nearest size with times, activations, stashes and scratch scaled by the
// ratio of the sizes (bytes rounded up; parameters and optimizer state unchanged). Pre-condition:
// CheckProfile; rows >= 1.
SizedLayers LayersAt(const Profile& profile, int64_t rows);

// Returns the layers of a graph as a chain in that order. Each layer's output is as before; its
// input is everything that is produced before it and read by it or later (input_bytes, except for
// the first layer), each output once, and kept as long as any of its readers keeps it; the part
// that is read later it passes on (passing_bytes), with as much scratch for its gradient
// (workspace_bytes). An output that is read beyond the next layer is kept until B. `order`: a
// topological order, its indices into `layers`. Without edges the layers are only put into that
// order.
std::vector<LayerCost> InOrder(absl::Span<const LayerCost> layers, absl::Span<const Edge> edges,
                               absl::Span<const int> order);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_PROFILE_H_
