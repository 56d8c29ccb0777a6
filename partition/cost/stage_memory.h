#ifndef STAGECOACH_PARTITION_COST_STAGE_MEMORY_H_
#define STAGECOACH_PARTITION_COST_STAGE_MEMORY_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/replication.h"
#include "schedule/ir/schedule.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {

// The memory of stages besides that of their layers: for what they are fed, mostly at the two ends
// of a model.
struct EndMemory {
  // First stage: the inputs of a step's micro-batches, if they are copied ahead.
  int64_t feed_resident_bytes = 0;
  // Last stage: scratch while the loss is computed, and the targets, terms and results of all
  // micro-batches.
  int64_t loss_workspace_bytes = 0;
  int64_t loss_resident_bytes = 0;
  // Every stage: what it is told of the samples of a step's micro-batches.
  int64_t stage_resident_bytes = 0;
};

struct StagePosition {
  bool is_first = false;         // its input is data, so no gradient of it is computed
  bool is_last = false;          // it computes the loss
  bool splits_backward = false;  // the schedule has B and W apart for some micro-batch
  bool trains = true;            // the schedule has B and W at all
  Replication replication = {};
};

// Returns the position of a stage of a schedule that each of the replicas performs.
StagePosition PositionOf(const schedule::Schedule& schedule, schedule::StageId stage,
                         const Replication& replication);

// Returns the bytes of a layer's parameters that are in the host's memory with the state of the
// optimizer (Replication::offloads_optimizer).
int64_t HostValueBytes(const LayerMemory& layer, const Replication& replication);

// A place in one of a stage's areas.
struct Place {
  enum class Area : uint8_t { kStash, kWeightStash, kGradientStash, kWorkspace };
  Area area = Area::kWorkspace;
  int64_t offset = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

// The locations of a layer's memory within its stage.
struct LayerPlaces {
  Place stash, weight_stash, gradient_stash, workspace;  // its own areas
  // The activation after it and that activation's gradient; for the last layer they are the stage's
  // output, a block of its own, and these are not set.
  Place output, output_gradient;
  // If a layer repeats F within B, `stash` and `weight_stash` are where the second F leaves what it
  // keeps, for B and W. The first F leaves its part for W at `first_weight_stash`, and that for B
  // where the second does; neither is read. The second F's output goes to `second_output`, or, if
  // that is not set, overwrites the first one's.
  Place first_weight_stash;
  std::optional<Place> second_output;
  // The area of skips, shared by all layers.
  Place skips;
};

// Lays out a stage made of the consecutive `layers` (at least one): returns its memory and, if
// `places` is not null, sets it to where each layer's memory lies. The planner, which only asks for
// sizes, and the runtime, which computes in these places, use this one function. The rules:
//  - Each layer has a part of the stash, of the weight stash and, if the stage splits its backward,
//    of the gradient stash.
//  - The activation between two layers of the stage lives until the later of its two readers is
//    done with it (the next layer's input_last_use, its own layer's output_last_use): in the
//    workspace if that is F, else in the stash (B) or weight stash (W).
//  - The gradient of such an activation is in the workspace, except when the stage splits its
//    backward and the activation's layer's W reads it: then it is part of the gradient stash.
//  - The workspace has two slots as large as the largest activation or gradient that passes through
//    it (0 if none does), the largest scratch of any layer, and, if the stage never splits its
//    backward, the largest gradient_stash_bytes of any layer. Neighbors alternate between the
//    slots, so that a layer never reads and writes the same one. The loss uses the same workspace
//    after the layers.
//  - The outputs that later layers read beyond the next one are in an area of the workspace as
//    large as any boundary within the stage needs (skip_area_bytes), and so are their gradients,
//    in B.
//  - A layer that repeats F within B (LayerMemory::dropped) and whose output is not kept until then
//    writes it, the second time, to the slot where it is about to write the gradient of its input.
//    A stage of a single layer has only one slot. If the stage splits its backward, what the first
//    F leaves for W is scratch: the gradient stash does not exist before B.
//  - A stage that does not train, where no layer repeats F, has nothing for gradients and the
//    optimizer, and of the parameters only what layers read (LayerMemory::working_bytes). Layers
//    share their parts of the stash, and activations between them are in the workspace.
//  - Every tensor is rounded up by AlignTensor, the scratch as if it were one; the areas themselves
//    are not rounded further, nor are the stage's input and output, which are blocks of their own.
schedule::StageMemory LayOutStage(absl::Span<const LayerMemory> layers, const EndMemory& ends,
                                  const StagePosition& position,
                                  std::vector<LayerPlaces>* places = nullptr);

// Returns LayOutStage of the first layer, of the first two, and so on to all, in one pass.
std::vector<schedule::StageMemory> LayOutStagesFrom(absl::Span<const LayerMemory> layers,
                                                    const EndMemory& ends,
                                                    const StagePosition& position);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_COST_STAGE_MEMORY_H_
