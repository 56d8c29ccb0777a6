#ifndef STAGECOACH_PARTITION_PROFILE_H_
#define STAGECOACH_PARTITION_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/layer_cost.h"
#include "partition/stage_memory.h"
#include "partition/tie.h"

namespace stagecoach::partition {

// The layers of a model at one micro-batch size.
struct SizedLayers {
  int64_t micro_batch_rows = 1;
  std::vector<LayerCost> layers;
  int64_t feed_bytes_per_micro_batch = 0;  // of its input, where that is copied ahead; else 0
  int64_t loss_workspace_bytes = 0;        // scratch while the loss is computed
  int64_t loss_bytes_per_micro_batch = 0;  // its targets and results, kept for the whole step

  EndMemory ends(int micro_batches) const {
    return {.feed_resident_bytes = AlignTensor(micro_batches * feed_bytes_per_micro_batch),
            .loss_workspace_bytes = loss_workspace_bytes,
            .loss_resident_bytes = AlignTensor(micro_batches * loss_bytes_per_micro_batch)};
  }
  friend bool operator==(const SizedLayers&, const SizedLayers&) = default;
};

// What one layer reads of another's output. Indices of SizedLayers::layers, producer < consumer.
struct Edge {
  int producer = 0;
  int consumer = 0;

  friend bool operator==(const Edge&, const Edge&) = default;
};

// All that a planner knows of a model: a chain of layers, or a directed acyclic graph of them.
struct Profile {
  std::string model;               // for people
  std::vector<SizedLayers> sizes;  // at least one; ascending micro_batch_rows
  std::vector<Edge> edges;         // empty: a chain, each layer reads the one before it
  // Whether a layer is updated within the backward pass of the last micro-batch, as soon as its
  // gradients are complete (this engine, unless it clips them); else when all passes are done.
  bool updates_in_backward = false;
  schedule::CollectiveMemory collectives;  // of the runs that it is for
  std::vector<Tie> ties;                   // layers that share a parameter

  int num_layers() const { return static_cast<int>(sizes.front().layers.size()); }
  bool is_chain() const { return edges.empty(); }
  friend bool operator==(const Profile&, const Profile&) = default;
};

inline constexpr int kMaxLayers = 100'000;
inline constexpr int kMaxEdges = 1'000'000;
inline constexpr int kMaxSizes = 256;
inline constexpr int kMaxLayerCosts = 1'000'000;  // layers * sizes
inline constexpr int64_t kMaxMicroBatchRows = int64_t{1} << 32;

// InvalidArgument, naming size, layer and field, unless there is a size, sizes ascend, each has the
// same layers (names, parameters, last uses, and whether they can do F again), names are unique and
// not empty, every layer passes CheckLayers, no time exceeds schedule::kMaxTimeNs, counts are
// within their limits, edges go forward between existing layers, none twice, and so do ties.
absl::Status CheckProfile(const Profile& profile);

// The layers for micro-batches of `rows` rows: those of that size if the profile has it, else those
// of the nearest size with times, activations, stashes and scratch scaled by the ratio of the rows
// (bytes rounded up; parameters and optimizer state as they are). Pre-condition: CheckProfile;
// rows >= 1.
SizedLayers LayersAt(const Profile& profile, int64_t rows);

// The layers of a graph as a chain in that order. Each gives its own output as before; what it is
// given is all that is produced before and read by it or after (input_bytes, but for the first
// layer), each output once, and kept as long as any of its readers keeps it; what of that is read
// after it, it hands on (passing_bytes), holding as much scratch for its gradient
// (workspace_bytes). An output that is read past the next layer is kept until B. `order`: a
// topological order, its indices into `layers`. Without edges the layers are only put into that
// order.
std::vector<LayerCost> InOrder(absl::Span<const LayerCost> layers, absl::Span<const Edge> edges,
                               absl::Span<const int> order);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_PROFILE_H_
