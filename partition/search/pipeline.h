#ifndef STAGECOACH_PARTITION_SEARCH_PIPELINE_H_
#define STAGECOACH_PARTITION_SEARCH_PIPELINE_H_

#include <cstdint>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/cluster.h"
#include "partition/layer_cost.h"
#include "partition/plan/plan.h"
#include "partition/plan/prepared_plan.h"
#include "partition/search/stage_peaks.h"
#include "partition/stage_memory.h"
#include "schedule/costs.h"
#include "schedule/schedule.h"
#include "schedule/simulate.h"

namespace stagecoach::partition {

// The layers of a model as one device of a rank sees them, and sums over them from the first.
struct LayerTable {
  LayerTable(std::vector<LayerCost> layers, const EndMemory& ends, bool updates_in_backward = false,
             const schedule::CollectiveMemory& collectives = {});

  int num_layers() const { return static_cast<int>(layers.size()); }

  std::vector<LayerCost> layers;
  std::vector<LayerMemory> memory;  // of the layers
  EndMemory ends;
  bool updates_in_backward;                // Profile has the same
  schedule::CollectiveMemory collectives;  // Profile has the same
  // Index: layer; the times of all layers before it. One more than there are layers.
  std::vector<double> forward_ns, backward_input_ns, backward_weight_ns, step_ns;
};

inline constexpr int64_t kUnlimitedBytes = std::numeric_limits<int64_t>::max();

// The devices of one rank: each has the rank's stages and an equal part of the rows of every
// micro-batch.
struct RankDevices {
  std::vector<int> devices;                // of the cluster
  double speed = 1.0;                      // of the slowest
  int64_t memory_bytes = kUnlimitedBytes;  // of the smallest
  std::shared_ptr<const LayerTable> layers;
};

// The `count` devices of the cluster from `first` on, as the group of a rank; without its layers.
RankDevices RankDevicesOf(const Cluster& cluster, int first, int count);

// A schedule on given devices: all that a cut of the model into its stages is judged by.
// Thread-compatible.
class Pipeline {
 public:
  // `schedule`: compute or lowered, one to train with. `groups`: one per rank, with equally many
  // layers, at least one per stage. InvalidArgument: fewer layers than stages; FailedPrecondition:
  // the schedule cannot be performed with the cluster's transfers.
  static absl::StatusOr<Pipeline> Create(const schedule::Schedule& schedule,
                                         int64_t micro_batch_rows, std::vector<RankDevices> groups,
                                         const Cluster& cluster);

  // How long the devices of a group take to add up so many bytes of gradients: a ring.
  static int64_t ReductionNs(const RankDevices& group, const Cluster& cluster, int64_t bytes);

  // The same of the groups of this pipeline, where they are all alike; the rounding aside, a sum
  // over layers.
  double ReductionNsOf(int64_t bytes) const;

  // A choice of layers for the stages.
  struct Cut {
    std::vector<int> first_layer;  // of each stage; ascending, starts with 0
    std::vector<int> recomputed;   // layers that do F again within B; ascending

    friend bool operator==(const Cut&, const Cut&) = default;
  };

  int num_layers() const { return devices_of(0).layers->num_layers(); }
  int num_stages() const { return plan_.schedule.num_stages(); }
  int num_ranks() const { return plan_.num_ranks(); }
  int micro_batches() const { return plan_.micro_batches(); }
  bool is_uniform() const;  // all ranks have equally many devices
  bool has_one_stage_per_rank() const { return num_stages() == num_ranks(); }
  int rank_of(int stage) const { return plan_.schedule.rank_of_stage[stage].value(); }
  const RankDevices& devices_of(int rank) const { return groups_[static_cast<size_t>(rank)]; }
  const RankDevices& devices_of_stage(int stage) const { return devices_of(rank_of(stage)); }
  StagePeaks& peaks() { return peaks_; }
  const schedule::Schedule& training() const { return peaks_.lowered().training; }
  int in_flight(int stage) const { return peaks_.in_flight(stage); }
  // As the runtime sends (with the cluster's transfers) where the cluster overlaps messages, else
  // blocking.
  schedule::Sends sends() const { return sends_; }
  // Of the messages between two stages; of no duration between stages of one rank.
  schedule::Link LinkBetween(int stage, int next_stage) const;
  bool overlaps_messages() const { return sends_ != schedule::Sends::kBlocking; }

  int Last(const Cut& cut, int stage) const;
  // Everything the stage takes, on one device of its rank.
  schedule::StageMemory Memory(int first, int last, int stage,
                               absl::Span<const int> recomputed) const;
  std::vector<schedule::StageMemory> Memories(const Cut& cut) const;
  schedule::Costs CostsOf(const Cut& cut) const;
  absl::StatusOr<PlanReport> Report(const Cut& cut) const;
  absl::StatusOr<PreparedPlan> Prepare(const Cut& cut) const;

  // What the busiest rank computes in one step, messages and reduction aside: a lower bound of
  // StepNs and BottleneckNs that costs little.
  double BusiestNs(const Cut& cut) const;
  // Of one step, as the runtime performs it.
  absl::StatusOr<int64_t> StepNs(const Cut& cut) const;
  // What the busiest rank takes for one step, with reduction and update, and with its messages as
  // the cluster has it (Cluster::overlaps_messages).
  double BottleneckNs(const Cut& cut) const;
  // How much the rank that fits least is above its memory; at most 0 if the cut fits.
  absl::StatusOr<int64_t> ExcessBytes(const Cut& cut);

 private:
  Pipeline(Plan plan, std::vector<RankDevices> groups, schedule::Sends sends, StagePeaks peaks);

  Plan PlanOf(const Cut& cut) const;
  // By which a message of the layers' size shrinks or grows between groups of different sizes.
  int64_t MessageBytes(int from_stage, int to_stage, int64_t bytes) const;
  schedule::StageTimes TimesOf(const Cut& cut, int stage) const;

  Plan plan_;  // without its cut
  std::vector<RankDevices> groups_;
  schedule::Sends sends_;
  StagePeaks peaks_;
  std::vector<schedule::Link> links_;  // index: sender * ranks + receiver; empty: no time
  Cluster cluster_;
};

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_SEARCH_PIPELINE_H_
