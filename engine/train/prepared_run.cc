#include "engine/train/prepared_run.h"

#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partition/cost/device_groups.h"
#include "partition/evaluate/evaluate_plan.h"
#include "partition/search/balance_stages.h"
#include "partition/search/planner.h"
#include "schedule/generators/generators.h"

namespace stagecoach::engine {
namespace {

schedule::Transfers TransfersFor(const PlanOptions& options) {
  RankGroupOptions group = {.ranks = options.devices,
                            .replication = options.replication,
                            .tensor_parts = options.tensor_parts,
                            .device = options.device,
                            .exchange = options.exchange};
  // Processes may name their GPUs alike: the same number does not mean the same GPU.
  if (options.results != schedule::ResultsPlace::kNowhere) group.device.gpus.clear();
  return TransfersOf(group);
}

// Returns the devices, or the groups of them that share layers.
absl::StatusOr<partition::GroupedCluster> GroupsOf(const PlanOptions& options) {
  return GroupDevices(options.device.ClusterOf(options.all_devices()), options.tensor_parts,
                      /*message_parts=*/1);
}

int OwnMicroBatches(const PlanOptions& options) {
  return options.micro_batches / options.replication.replicas;
}

// A user's schedule is made for one number of devices only.
partition::ScheduleMaker MakerOf(const PlanOptions& options) {
  if (options.predicts) return partition::ForwardSchedule(OwnMicroBatches(options));
  if (!options.given.has_value()) {
    return partition::GeneratedSchedule(options.schedule, OwnMicroBatches(options), options.chunks);
  }
  return [given = *options.given](int devices) -> absl::StatusOr<schedule::Schedule> {
    if (devices == given.num_ranks()) return given;
    return absl::InvalidArgumentError(
        absl::StrCat("the schedule is for ", given.num_ranks(), " devices, not ", devices));
  };
}

// Returns none for kPlanned.
std::vector<int> RecomputedLayers(const ModelProfile& profile, Recompute recompute) {
  std::vector<int> recomputed;
  const auto can = [&](int layer) {
    return profile.layers[static_cast<size_t>(layer)].recompute_stash_bytes.has_value();
  };
  if (recompute == Recompute::kAttention) {
    absl::c_copy_if(profile.attention_layers, std::back_inserter(recomputed), can);
  } else if (recompute == Recompute::kFull) {
    for (int layer = 0; layer < static_cast<int>(profile.layers.size()); ++layer) {
      if (can(layer)) recomputed.push_back(layer);
    }
  }
  return recomputed;
}

// Returns the fastest plan with any schedule, for the given number of micro-batches.
absl::StatusOr<partition::PlanEvaluation> SearchPlan(const partition::Profile& profile,
                                                     const PlanOptions& options) {
  partition::PlannerRequest request;
  ASSIGN_OR_RETURN(partition::GroupedCluster groups, GroupsOf(options));
  request.profile = WithExchangeTimes(profile, options.tensor_parts, groups.within);
  request.cluster = std::move(groups.cluster);
  request.cluster.transfers = TransfersFor(options);
  request.batch_rows = options.micro_batches * options.micro_batch_rows;
  request.micro_batches = options.micro_batches;
  request.replicas = options.replication.replicas;
  request.gradient_blocks = options.replication.gradient_blocks;
  request.shards_optimizer = options.replication.shards_optimizer;
  request.reduction = options.replication.reduction;
  request.may_recompute = options.recompute == Recompute::kPlanned;
  request.offload = options.offload;
  request.offloads_optimizer = options.replication.offloads_optimizer;
  if (options.chunks > 0) request.chunks = options.chunks;
  return FindPlan(request);
}

absl::StatusOr<partition::CompiledPlan> PlanForSchedule(const ModelProfile& profile,
                                                        const PlanOptions& options) {
  ASSIGN_OR_RETURN(partition::GroupedCluster groups, GroupsOf(options));
  partition::Cluster& cluster = groups.cluster;
  cluster.transfers = TransfersFor(options);
  const partition::Replication replication = WithPartsFor(cluster.transfers, options.replication);
  std::vector<partition::LayerCost> layers = profile.layers;
  for (partition::LayerCost& layer : layers) {
    AddExchangeTimes(options.tensor_parts, groups.within, layer);
  }
  return partition::BalanceStages({.layers = layers,
                                   .ends = profile.ends(OwnMicroBatches(options)),
                                   .cluster = std::move(cluster),
                                   .replication = replication,
                                   .schedule = MakerOf(options),
                                   .predicts = options.predicts,
                                   .micro_batch_rows = options.micro_batch_rows,
                                   .offload = options.predicts ? 0.0 : options.offload,
                                   .collectives = profile.collectives});
}

// The search assumes a core per device. If devices share some, a schedule with less idle time gains
// less, so the result is compared with all named schedules under that assumption.
absl::StatusOr<partition::CompiledPlan> FastestPlan(const ModelProfile& profile,
                                                    const PlanOptions& options) {
  const partition::Profile joined = JoinProfiles("", {profile});
  ASSIGN_OR_RETURN(partition::PlanEvaluation found, SearchPlan(joined, options));
  const int devices = options.devices * options.replication.replicas;
  ASSIGN_OR_RETURN(const partition::GroupedCluster groups, GroupsOf(options));
  if (options.cores == 0 || options.cores >= devices) {
    return std::move(found.compiled);
  }
  double best_ns = StepNsOnCores(found, options.cores);
  partition::CompiledPlan best = std::move(found.compiled);
  for (const schedule::Generator& generator : schedule::Generators()) {
    PlanOptions named = options;
    named.schedule = std::string(generator.name);
    absl::StatusOr<partition::CompiledPlan> plan = PlanForSchedule(profile, named);
    if (!plan.ok()) continue;  // not for this shape, or it does not fit
    ASSIGN_OR_RETURN(const partition::PlanEvaluation evaluation,
                     EvaluatePlan(plan->plan, joined, groups.cluster));
    const double step_ns = StepNsOnCores(evaluation, options.cores);
    if (step_ns >= best_ns) continue;
    best_ns = step_ns;
    best = *std::move(plan);
  }
  return best;
}

absl::StatusOr<partition::CompiledPlan> PlanWithStages(const ModelProfile& profile,
                                                       const PlanOptions& options) {
  RETURN_IF_ERROR(CheckReplication(options.replication, options.micro_batches));
  RETURN_IF_ERROR(CheckClusterOf(options.device, options.all_devices()));
  const bool is_open = !options.given.has_value() && options.schedule == partition::kAnySchedule;
  return is_open && !options.predicts ? FastestPlan(profile, options)
                                      : PlanForSchedule(profile, options);
}

}  // namespace

SampleSpec PreparedRun::sample_spec() const {
  TensorSpec input = {.name = "features", .shape = model.input};
  if (model.takes_ids()) {
    input.type = kernels::DType::kInt32;
    input.vocabulary = model.vocabulary;
  }
  return {.inputs = {std::move(input)}, .target = profile.loss_spec.target};
}

ProfileOptions ProfileOptionsOf(const PlanOptions& options) {
  return {.micro_batch_rows = options.micro_batch_rows,
          .optimizer = options.optimizer,
          .device = options.device,
          .tensor_parts = options.tensor_parts,
          .results = options.results};
}

absl::StatusOr<PreparedRun> PrepareRun(const Model& model, const PlanOptions& options) {
  ASSIGN_OR_RETURN(ModelProfile profile, AnalyzeModel(model, ProfileOptionsOf(options)));
  return PrepareRun(model, std::move(profile), options);
}

absl::StatusOr<PreparedRun> PrepareRun(const Model& model, ModelProfile profile,
                                       const PlanOptions& options) {
  const std::vector<int> recomputed =
      RecomputedLayers(profile, options.predicts ? Recompute::kNone : options.recompute);
  // The search sees them as other layers.
  ModelProfile with_recomputed = profile;
  for (const int layer : recomputed) {
    partition::LayerCost& cost = with_recomputed.layers[static_cast<size_t>(layer)];
    cost = partition::Recomputed(cost);
  }
  ASSIGN_OR_RETURN(partition::CompiledPlan plan, PlanWithStages(with_recomputed, options));
  if (!recomputed.empty()) plan.plan.recomputed = recomputed;
  plan.plan.tensor_parts = options.tensor_parts;
  return PreparedRun{std::move(plan), model, options.optimizer, options.device, std::move(profile)};
}

absl::StatusOr<PreparedRun> PrepareRun(const Model& model, GivenPlan given) {
  RETURN_IF_ERROR(CheckPlan(given.plan));
  ASSIGN_OR_RETURN(ModelProfile profile,
                   AnalyzeModel(model, {.micro_batch_rows = given.plan.micro_batch_rows,
                                        .optimizer = given.optimizer,
                                        .device = given.device,
                                        .tensor_parts = given.plan.tensor_parts,
                                        .results = given.results}));
  return PrepareRun(model, std::move(profile), std::move(given));
}

absl::StatusOr<PreparedRun> PrepareRun(const Model& model, ModelProfile profile, GivenPlan given) {
  if (given.recompute != Recompute::kPlanned) {
    given.plan.recomputed = RecomputedLayers(profile, given.recompute);
  }
  given.plan.offload = given.offload.value_or(given.plan.offload);
  const partition::EndMemory ends = profile.ends(given.plan.schedule.num_micro_batches);
  ASSIGN_OR_RETURN(partition::CompiledPlan plan,
                   CompilePlan(std::move(given.plan), profile.layers, ends, given.transfers,
                               profile.collectives));
  return PreparedRun{std::move(plan), model, given.optimizer, given.device, std::move(profile)};
}

}  // namespace stagecoach::engine
