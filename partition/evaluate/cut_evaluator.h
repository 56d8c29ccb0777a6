#ifndef STAGECOACH_PARTITION_EVALUATE_CUT_EVALUATOR_H_
#define STAGECOACH_PARTITION_EVALUATE_CUT_EVALUATOR_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "partition/cost/cluster.h"
#include "partition/cost/device_groups.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/profile.h"
#include "partition/cost/replication.h"
#include "partition/cost/stage_memory.h"
#include "partition/evaluate/stage_peaks.h"
#include "partition/plan/compiled_plan.h"
#include "partition/plan/plan.h"
#include "partition/plan/plan_evaluation.h"
#include "schedule/ir/schedule.h"
#include "schedule/simulate/costs.h"
#include "schedule/simulate/simulate.h"

namespace stagecoach::partition {

// The layers of a model, and sums over them from the first.
struct LayerTable {
  LayerTable(std::vector<LayerCost> layers, const EndMemory& ends, bool updates_in_backward = false,
             const schedule::CollectiveMemory& collectives = {});

  int num_layers() const { return static_cast<int>(layers.size()); }

  std::vector<LayerCost> layers;
  std::vector<LayerMemory> memory;  // of the layers
  EndMemory ends;
  bool updates_in_backward;                // as in Profile; never with replicas
  schedule::CollectiveMemory collectives;  // as in Profile
  std::vector<Tie> ties;                   // of these layers
  // Index: layer; the times of all layers before it. One more entry than layers.
  std::vector<double> forward_ns, backward_input_ns, backward_weight_ns, shared_backward_ns,
      step_ns;
  // The same for updates that are part of REDUCEs, concurrent with everything else; their layers'
  // step_ns is 0.
  std::vector<double> reduced_step_ns;
  std::vector<int64_t> parameter_bytes;
  // What updates read and write in the host's memory; empty: nothing.
  std::vector<int64_t> host_bytes;
};

// Returns the layers of a profile at that micro-batch size, for replicas that perform that many
// micro-batches each. `order`: that of a graph's layers; empty for a chain.
std::shared_ptr<const LayerTable> TableOf(const Profile& profile, int64_t micro_batch_rows,
                                          int micro_batches, const Replication& replication,
                                          absl::Span<const int> order);

// A schedule on given devices: everything needed to judge a cut of the model into its stages.
// Thread-compatible.
class CutEvaluator {
 public:
  // `plan`: without its cut; has as many devices as the cluster. `layers`: for its micro-batch size
  // and replication, in its order. InvalidArgument: fewer layers than stages; FailedPrecondition:
  // the schedule cannot be performed with the cluster's transfers.
  static absl::StatusOr<CutEvaluator> Create(Plan plan, std::shared_ptr<const LayerTable> layers,
                                             const Cluster& cluster);

  // A choice of layers for the stages.
  struct Cut {
    std::vector<int> first_layer;  // of each stage; ascending, starts with 0
    std::vector<int> recomputed;   // layers that repeat F within B; ascending

    friend bool operator==(const Cut&, const Cut&) = default;
  };

  const LayerTable& layers() const { return *layers_; }
  int num_layers() const { return layers_->num_layers(); }
  int num_stages() const { return plan_.schedule.num_stages(); }
  int num_ranks() const { return plan_.num_ranks(); }
  int micro_batches() const { return plan_.schedule.num_micro_batches; }  // of each replica
  const Replication& replication() const { return plan_.replication; }
  bool has_one_stage_per_rank() const { return num_stages() == num_ranks(); }
  int rank_of(int stage) const { return plan_.schedule.rank_of_stage[stage].value(); }
  const DeviceGroup& devices_of(int rank) const { return devices_[static_cast<size_t>(rank)]; }
  const DeviceGroup& devices_of_stage(int stage) const { return devices_of(rank_of(stage)); }
  StagePeaks& peaks() { return peaks_; }
  const schedule::Schedule& training() const { return peaks_.lowered()->training; }
  int in_flight(int stage) const { return peaks_.in_flight(stage); }
  // Returns how the runtime sends (with the cluster's transfers) if the cluster overlaps messages,
  // else blocking.
  schedule::Sends sends() const { return sends_; }
  // Returns the link for messages between two stages; it takes no time between stages of one rank.
  schedule::Link LinkBetween(int stage, int next_stage) const;
  // Returns how long TIES takes.
  int64_t TiesNs(const Cut& cut) const;
  bool overlaps_messages() const { return sends_ != schedule::Sends::kBlocking; }
  // Returns how long the replicas of a rank take to sum `bytes` of gradients.
  int64_t ReductionNs(int rank, int64_t bytes) const {
    return (CountSums(replication()).most + 1) * GatherNs(rank, bytes);
  }
  // Returns how long they take to exchange their shards of `bytes` bytes.
  int64_t GatherNs(int rank, int64_t bytes) const;
  // Returns how long the update of these layers waits for the host's memory
  // (Replication::offloads_optimizer).
  int64_t HostUpdateNs(size_t first, size_t end) const;
  // Returns about the same for any rank, as a sum over layers: without latency and rounding.
  double ReductionNsOf(int64_t bytes) const;

  int Last(const Cut& cut, int stage) const;
  // Returns everything the stage takes, on each device of its rank.
  schedule::StageMemory Memory(int first, int last, int stage,
                               absl::Span<const int> recomputed) const;
  std::vector<schedule::StageMemory> Memories(const Cut& cut) const;
  schedule::Costs CostsOf(const Cut& cut) const;
  absl::StatusOr<CompiledPlan> Compile(const Cut& cut) const;

  // Returns what the busiest rank computes in one step, without messages and reductions: a cheap
  // lower bound of StepNs and BottleneckNs.
  double BusiestNs(const Cut& cut) const;
  // Returns the time of one step, as the runtime performs it.
  absl::StatusOr<int64_t> StepNs(const Cut& cut) const;
  // Returns what the busiest rank takes for one step: to compute, with its updates; to receive; to
  // send; to sum gradients. The most of these if the cluster overlaps messages, else their sum.
  double BottleneckNs(const Cut& cut) const;
  // Returns by how much the rank that fits least exceeds its memory; at most 0 if the cut fits.
  absl::StatusOr<int64_t> ExcessBytes(const Cut& cut);

 private:
  CutEvaluator(Plan plan, std::shared_ptr<const LayerTable> layers,
               std::vector<DeviceGroup> devices, schedule::Sends sends, StagePeaks peaks);

  Plan PlanOf(const Cut& cut) const;
  schedule::StageTimes TimesOf(const Cut& cut, int stage) const;

  Plan plan_;  // without its cut
  std::shared_ptr<const LayerTable> layers_;
  std::vector<DeviceGroup> devices_;  // index: rank
  schedule::Sends sends_;
  StagePeaks peaks_;
  bool moves_stashes_ = false;  // whether its schedule does; decided once: costs are asked often
  schedule::HostLink host_link_;
  std::vector<schedule::Link> links_;  // index: sender * ranks + receiver; empty: no time
};

// Returns EvaluatePlan (evaluate_plan.h) for a cut of a pipeline.
absl::StatusOr<PlanEvaluation> EvaluateCut(const CutEvaluator& pipeline,
                                           const CutEvaluator::Cut& cut, const Profile& profile,
                                           const Cluster& cluster, PlanObjective objective);

}  // namespace stagecoach::partition

#endif  // STAGECOACH_PARTITION_EVALUATE_CUT_EVALUATOR_H_
