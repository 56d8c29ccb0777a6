// Measures how fast layers are cut into stages, and whole plans found, on one core: the figures of
// docs/performance.md. Prints the median of several rounds, and how far the slowest stage is above
// the mean; for plans one round, and how far the step is above its lower bound.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "bench/micro/median_seconds.h"
#include "partition/exact/chain.h"
#include "partition/io/transformer_profile.h"
#include "partition/search/planner.h"

namespace stagecoach::partition {
namespace {

using bench::MedianSeconds;

struct Kind {
  const char* name;
  bool has_messages = false;
  bool overlaps_messages = false;
  bool has_memory = false;
  bool has_speeds = false;
};

// Makes layers between 0.5 and 1.5 ms; messages that take about half as long as a stage computes; a
// budget that is a fifth above the need of a stage with its share of the layers, of which earlier
// stages keep more in flight; and speeds between 0.5 and 2.
ChainProblem MakeProblem(int layers, int stages, const Kind& kind) {
  const base::RandomStream random(1, 0);
  uint64_t index = 0;
  const auto uniform = [&] { return static_cast<double>(random.Uniform(index++)); };
  ChainProblem problem = {.stages = stages, .overlaps_messages = kind.overlaps_messages};
  for (int i = 0; i < layers; ++i) problem.layer_ns.push_back(1e6 * (0.5 + uniform()));
  const double layers_per_stage = static_cast<double>(layers) / stages;
  if (kind.has_speeds) {
    for (int i = 0; i < stages; ++i) problem.speeds.push_back(0.5 + 1.5 * uniform());
  }
  if (kind.has_messages) {
    const double mean_bytes = 1e6 * layers_per_stage / 8;  // four of them per stage, at 1 GB/s
    for (int i = 0; i < layers; ++i) {
      problem.boundary_bytes.push_back(static_cast<int64_t>(mean_bytes * (0.5 + uniform())));
    }
    for (int i = 0; i + 1 < stages; ++i) {
      problem.links.push_back({.latency_ns = 5000, .bytes_per_second = 1e9 * (0.5 + uniform())});
    }
  }
  if (kind.has_memory) {
    for (int i = 0; i < layers; ++i) {
      problem.layer_bytes.push_back(static_cast<int64_t>(1e8 * (0.5 + uniform())));
      problem.layer_stash_bytes.push_back(static_cast<int64_t>(1e5 * (0.5 + uniform())));
    }
    for (int i = 0; i < stages; ++i) {
      problem.in_flight.push_back(stages - i);
      const double bytes = layers_per_stage * (1e8 + 1e5 * (stages - i));
      problem.budget_bytes.push_back(static_cast<int64_t>(
          bytes * 1.2 * (kind.has_speeds ? problem.speeds[i] / 1.25 : 1.0) + 2e8));
    }
  }
  return problem;
}

void Measure(int layers, int stages, const Kind& kind) {
  const ChainProblem problem = MakeProblem(layers, stages, kind);
  absl::StatusOr<ChainCut> cut;
  const double seconds = MedianSeconds([&] { cut = PartitionChain(problem); });
  if (!cut.ok()) {
    std::printf("%6d x %4d  %-28s %8.1f ms  no cut fits\n", layers, stages, kind.name,
                seconds * 1e3);
    return;
  }
  const double work = std::accumulate(problem.layer_ns.begin(), problem.layer_ns.end(), 0.0);
  const double speed = problem.speeds.empty()
                           ? stages
                           : std::accumulate(problem.speeds.begin(), problem.speeds.end(), 0.0);
  std::printf("%6d x %4d  %-28s %8.1f ms  slowest stage %.3f of the mean computing time\n", layers,
              stages, kind.name, seconds * 1e3, cut->bottleneck_ns / (work / speed));
}

// Makes GPT-3 (175 billion parameters), each layer on eight devices that act as one: 96 layers over
// 64 of them, eight on a host.
PlannerRequest Gpt(int64_t batch_rows, int64_t memory_bytes) {
  Transformer gpt;
  gpt.layers = 96;
  gpt.hidden = 12'288;
  gpt.heads = 96;
  gpt.sequence = 2048;
  gpt.vocabulary = 51'200;
  gpt.micro_batch_rows = {1, 2};
  gpt.tensor_parallel = 8;
  gpt.sequence_parallel = true;
  gpt.attention = Attention::kRecomputed;
  PlannerRequest request;
  request.profile = TransformerProfile(gpt, "gpt3");
  request.cluster = UniformCluster(64, memory_bytes);
  for (size_t i = 0; i < request.cluster.devices.size(); ++i) {
    request.cluster.devices[i].host = static_cast<int>(i) / 8;
  }
  request.cluster.within_host = {.latency_ns = 5'000, .bytes_per_second = 300e9};
  request.cluster.between_hosts = {.latency_ns = 20'000, .bytes_per_second = 25e9};
  request.batch_rows = batch_rows;
  return request;
}

// Makes layers of which no two are alike, with micro-batches of one sample and two.
PlannerRequest Uneven(int layers, int devices, int64_t memory_bytes) {
  const base::RandomStream random(1, 0);
  uint64_t index = 0;
  const auto uniform = [&](double least, double most) {
    return least + (most - least) * static_cast<double>(random.Uniform(index++));
  };
  SizedLayers one = {.micro_batch_rows = 1, .layers = {}};
  for (int i = 0; i < layers; ++i) {
    LayerCost layer = {.name = absl::StrCat("layer.", i)};
    layer.forward_ns = 1e6 * uniform(1, 9);
    layer.backward_input_ns = layer.forward_ns * uniform(0.8, 1.2);
    layer.backward_weight_ns = layer.forward_ns * uniform(0.8, 1.2);
    layer.step_ns = layer.forward_ns / 4;
    layer.memory.parameter_bytes = static_cast<int64_t>(uniform(4e6, 120e6));
    layer.memory.optimizer_bytes = 2 * layer.memory.parameter_bytes;
    layer.memory.stash_bytes = static_cast<int64_t>(uniform(5e6, 60e6));
    layer.memory.output_bytes = static_cast<int64_t>(uniform(4e6, 16e6));
    layer.memory.input_bytes = i == 0 ? 0 : one.layers.back().memory.output_bytes;
    layer.recompute_stash_bytes = 1'000'000;
    one.layers.push_back(layer);
  }
  SizedLayers two = {.micro_batch_rows = 2, .layers = one.layers};
  for (LayerCost& layer : two.layers) {
    for (double* const ns :
         {&layer.forward_ns, &layer.backward_input_ns, &layer.backward_weight_ns}) {
      *ns *= 1.9;
    }
    for (int64_t* const bytes :
         {&layer.memory.stash_bytes, &layer.memory.output_bytes, &layer.memory.input_bytes}) {
      *bytes *= 2;
    }
    layer.recompute_stash_bytes = 2'000'000;
  }
  PlannerRequest request;
  request.profile = {.model = "uneven", .sizes = {one, two}, .edges = {}};
  request.cluster = UniformCluster(devices, memory_bytes);
  request.batch_rows = 32;
  return request;
}

void MeasurePlan(const char* name, const PlannerRequest& request) {
  const absl::StatusOr<PlanEvaluation> evaluation = FindPlan(request);
  if (!evaluation.ok()) {
    std::printf("%-44s %s\n", name, std::string(evaluation.status().message()).c_str());
    return;
  }
  std::printf("%-44s %8.1f s  %3d combinations, %4d plans simulated, gap %.1f %%: %s\n", name,
              absl::ToDoubleSeconds(evaluation->planning), evaluation->considered,
              evaluation->simulated, 100 * evaluation->gap(),
              evaluation->choice.ToString().c_str());
}

void MeasurePlans() {
  constexpr int64_t kGigabyte = 1'000'000'000;
  std::printf("\nGPT of 96 layers on 64 devices, any schedule, recomputation allowed\n");
  MeasurePlan("batch 256, no limit of memory", Gpt(256, 0));
  MeasurePlan("batch 256, 80 GB", Gpt(256, 80 * kGigabyte));
  MeasurePlan("batch 256, 15 GB", Gpt(256, 15 * kGigabyte));
  PlannerRequest replicated = Gpt(256, 80 * kGigabyte);
  replicated.replicas.reset();
  MeasurePlan("batch 256, 80 GB, any number of replicas", replicated);
  std::printf("\nLayers of which no two are alike, any schedule, recomputation allowed\n");
  MeasurePlan("24 layers, 4 devices, no limit of memory", Uneven(24, 4, 0));
  MeasurePlan("24 layers, 4 devices, 3 GB", Uneven(24, 4, 3 * kGigabyte));
  MeasurePlan("24 layers, 8 devices, 2 GB", Uneven(24, 8, 2 * kGigabyte));
  MeasurePlan("48 layers, 8 devices, 3 GB", Uneven(48, 8, 3 * kGigabyte));
}

}  // namespace
}  // namespace stagecoach::partition

int main() {
  using stagecoach::partition::Kind;
  const Kind kinds[] = {
      {.name = "plain"},
      {.name = "messages", .has_messages = true},
      {.name = "messages overlapped", .has_messages = true, .overlaps_messages = true},
      {.name = "memory, speeds", .has_memory = true, .has_speeds = true},
      {.name = "messages, memory, speeds",
       .has_messages = true,
       .has_memory = true,
       .has_speeds = true},
  };
  for (const auto& [layers, stages] :
       {std::pair(96, 64), std::pair(1000, 64), std::pair(10'000, 1024)}) {
    for (const Kind& kind : kinds) stagecoach::partition::Measure(layers, stages, kind);
  }
  stagecoach::partition::MeasurePlans();
}
