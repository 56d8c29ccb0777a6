// Compares random requests with exhaustive search where that is feasible.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/evaluate/evaluate_plan.h"
#include "partition/search/candidates.h"
#include "partition/search/planner.h"
#include "schedule/generators/generators.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using schedule::Transfers;

constexpr double kNone = std::numeric_limits<double>::infinity();

// Returns layers with whole-number times at the given sizes: twice the micro-batch size takes less
// than twice the time.
Profile RandomProfile(std::mt19937& random, int layers, const std::vector<int64_t>& sizes,
                      bool may_recompute) {
  const std::vector<LayerCost> base = RandomLayers(random, layers);
  Profile profile = {.model = "random", .sizes = {}, .edges = {}};
  for (const int64_t rows : sizes) {
    SizedLayers& sized = profile.sizes.emplace_back();
    sized.micro_batch_rows = rows;
    sized.layers = base;
    for (int i = 0; i < layers; ++i) {
      LayerCost& layer = sized.layers[i];
      layer.name = "layer." + std::to_string(i);
      const auto grow = [&](double ns) { return 100 * ns * static_cast<double>(1 + 2 * rows) / 3; };
      layer.forward_ns = std::floor(grow(layer.forward_ns + 1));
      layer.backward_input_ns = std::floor(grow(layer.backward_input_ns));
      layer.backward_weight_ns = std::floor(grow(layer.backward_weight_ns));
      layer.shared_backward_ns = std::floor(grow(layer.shared_backward_ns));
      if (may_recompute && (i * 7 + layers) % 3 != 0) {
        layer.recompute_stash_bytes = layer.memory.stash_bytes / 4;
        if (i % 2 == 1) {  // only some operators
          SetRepeated({.forward_ns = std::floor(layer.forward_ns / 3),
                       .stash_bytes = layer.memory.stash_bytes / 2,
                       .weight_stash_bytes = layer.memory.weight_stash_bytes / 4},
                      layer);
        }
      }
    }
  }
  return profile;
}

Cluster RandomCluster(std::mt19937& random, int devices, int64_t memory_bytes) {
  Cluster cluster = UniformCluster(devices, memory_bytes);
  for (ClusterDevice& device : cluster.devices) {
    if (random() % 3 == 0) device.speed = 0.5;
    if (memory_bytes > 0 && random() % 3 == 0) device.memory_bytes += memory_bytes / 2;
    if (random() % 8 == 0) device.memory_bytes = 0;  // no limit
    device.host = static_cast<int>(random() % 2);
  }
  std::sort(cluster.devices.begin(), cluster.devices.end(),
            [](const ClusterDevice& a, const ClusterDevice& b) { return a.host < b.host; });
  if (random() % 2 == 0) {
    const int64_t latency_ns = random() % 2 == 0 ? 20 : 300;  // a pass takes some hundred ns
    cluster.within_host = {.latency_ns = latency_ns, .bytes_per_second = 4e10};
    cluster.between_hosts = {.latency_ns = 5 * latency_ns, .bytes_per_second = 1e10};
  }
  cluster.overlaps_messages = random() % 2 == 0;
  return cluster;
}

// Returns all ways to write `sum` as a sequence of `parts` positive numbers.
std::vector<std::vector<int>> Compositions(int sum, int parts) {
  if (parts == 1) return {{sum}};
  std::vector<std::vector<int>> all;
  for (int first = 1; first <= sum - parts + 1; ++first) {
    for (std::vector<int> rest : Compositions(sum - first, parts - 1)) {
      rest.insert(rest.begin(), first);
      all.push_back(std::move(rest));
    }
  }
  return all;
}

// Tries every plan of one schedule that the request allows, each judged by its evaluation.
class Exhaustive {
 public:
  explicit Exhaustive(const PlannerRequest& request) : request_(request) {}

  double Best() {
    for (int replicas = 1; replicas <= request_.cluster.size(); ++replicas) {
      if (request_.cluster.size() % replicas != 0) continue;
      if (request_.replicas.value_or(replicas) != replicas) continue;
      for (const SizedLayers& size : request_.profile.sizes) {
        TryRows({.replicas = replicas,
                 .gradient_blocks = request_.gradient_blocks.value_or(replicas),
                 .shards_optimizer = request_.shards_optimizer && replicas > 1,
                 .offloads_optimizer = request_.offloads_optimizer},
                size.micro_batch_rows);
      }
    }
    return best_ns_;
  }

 private:
  void TryRows(const Replication& replication, int64_t rows) {
    if (request_.batch_rows % rows != 0) return;
    const int64_t micro_batches = request_.batch_rows / rows;
    if (!CheckReplication(replication, micro_batches).ok()) return;
    Plan plan;
    plan.num_layers = request_.profile.num_layers();
    plan.micro_batch_rows = rows;
    plan.replication = replication;
    for (const int chunks : ChunksToTry(plan)) {
      absl::StatusOr<schedule::Schedule> schedule = schedule::Generate(
          request_.schedule,
          {.ranks = request_.cluster.size() / replication.replicas,
           .micro_batches = static_cast<int>(micro_batches) / replication.replicas,
           .chunks = chunks});
      if (!schedule.ok() || schedule->num_stages() > plan.num_layers) continue;
      plan.schedule = *std::move(schedule);
      TryOrders(plan);
    }
  }

  // Returns the numbers of chunks that a request leaves open: up to four.
  std::vector<int> ChunksToTry(const Plan& plan) const {
    if (request_.chunks.has_value()) return {*request_.chunks};
    const schedule::Generator& generator = *schedule::FindGenerator(request_.schedule).value();
    std::vector<int> chunks = {generator.chunks};
    const int ranks = request_.cluster.size() / plan.replicas();
    while (generator.any_chunks && ranks > 1 && chunks.back() < 4) {
      chunks.push_back(chunks.back() + 1);
    }
    return chunks;
  }

  // Tries all topological orders of a graph.
  void TryOrders(Plan plan) {
    if (request_.profile.is_chain()) return TryCuts(std::move(plan));
    plan.order.resize(static_cast<size_t>(plan.num_layers));
    std::iota(plan.order.begin(), plan.order.end(), 0);
    do {
      const auto place = [&](int layer) {
        return std::find(plan.order.begin(), plan.order.end(), layer);
      };
      const std::vector<Edge>& edges = request_.profile.edges;
      const bool is_topological = std::all_of(edges.begin(), edges.end(), [&](const Edge& edge) {
        return place(edge.producer) < place(edge.consumer);
      });
      if (is_topological) TryCuts(plan);
    } while (std::next_permutation(plan.order.begin(), plan.order.end()));
  }

  void TryCuts(Plan plan) {
    for (const std::vector<int>& sizes :
         Compositions(plan.num_layers, plan.schedule.num_stages())) {
      plan.first_layer = {0};
      for (size_t i = 0; i + 1 < sizes.size(); ++i) {
        plan.first_layer.push_back(plan.first_layer.back() + sizes[i]);
      }
      TryRecomputation(plan);
    }
  }

  void TryRecomputation(Plan plan) {
    std::vector<int> able;
    for (int layer = 0; layer < plan.num_layers && request_.may_recompute; ++layer) {
      const LayerCost& cost = request_.profile.sizes.front().layers[static_cast<size_t>(layer)];
      if (cost.recompute_stash_bytes.has_value()) able.push_back(layer);
    }
    for (unsigned set = 0; set < 1U << able.size(); ++set) {
      plan.recomputed.clear();
      for (size_t i = 0; i < able.size(); ++i) {
        if ((set >> i & 1U) != 0) plan.recomputed.push_back(able[i]);
      }
      const absl::StatusOr<PlanEvaluation> evaluation =
          EvaluatePlan(plan, request_.profile, request_.cluster, request_.objective);
      ASSERT_OK(evaluation);
      if (CheckFits(*evaluation).ok()) best_ns_ = std::min(best_ns_, evaluation->objective_ns);
    }
  }

  const PlannerRequest& request_;
  double best_ns_ = kNone;
};

// Expects that the engine could run the answer: it is consistent, within memory, and takes what it
// says.
void ExpectHonest(const PlanEvaluation& evaluation, const PlannerRequest& request) {
  EXPECT_OK(CheckFits(evaluation));
  const absl::StatusOr<PlanEvaluation> again =
      EvaluatePlan(evaluation.plan(), request.profile, request.cluster, request.objective);
  ASSERT_OK(again);
  EXPECT_EQ(again->objective_ns, evaluation.objective_ns);
  EXPECT_LE(evaluation.lower_bound_ns, evaluation.objective_ns);
  EXPECT_EQ(evaluation.plan().batch_rows(), request.batch_rows);
  EXPECT_EQ(evaluation.plan().num_devices(), request.cluster.size());
}

void ExpectExhaustive(const PlannerRequest& request, int& fitting) {
  const double expected_ns = Exhaustive(request).Best();
  const absl::StatusOr<PlanEvaluation> evaluation = FindPlan(request);
  if (expected_ns == kNone) {
    EXPECT_FALSE(evaluation.ok());
    return;
  }
  ASSERT_OK(evaluation);
  EXPECT_EQ(evaluation->objective_ns, expected_ns) << request.schedule;
  ExpectHonest(*evaluation, request);
  ++fitting;
}

PlannerRequest RandomRequest(std::mt19937& random, bool may_recompute,
                             Transfers transfers = Transfers::kSeparate) {
  const int devices = 1 + static_cast<int>(random() % 4);
  const int layers = devices + static_cast<int>(random() % 3);
  PlannerRequest request;
  request.profile = RandomProfile(random, layers, {1, 2}, may_recompute);
  const int64_t memory_bytes =
      random() % 2 == 0 ? 0 : 20'000 + static_cast<int64_t>(random() % 90'000);
  request.cluster = RandomCluster(random, devices, memory_bytes);
  request.cluster.transfers = transfers;
  // Three replicas take a third of the batch each.
  const int64_t rows = devices == 3 || random() % 3 == 0 ? 3 : 4;
  request.batch_rows = rows + rows * static_cast<int64_t>(random() % 2);
  request.objective = random() % 4 == 0 ? PlanObjective::kBottleneck : PlanObjective::kStep;
  request.may_recompute = may_recompute;
  if (random() % 2 == 0) request.replicas.reset();
  if (random() % 3 == 0) request.gradient_blocks = std::array{1, 2, 3, 4, 6}[random() % 5];
  if (random() % 3 == 0) request.profile.collectives.norm_bytes = 8 * layers;
  request.shards_optimizer = !request.replicas.has_value() && random() % 2 == 0 && devices > 1;
  const int64_t drawn = memory_bytes + layers;
  request.offloads_optimizer = drawn % 3 == 0;
  if (drawn % 2 == 0) request.cluster.host_link.link.bytes_per_second = 1e9;
  request.cluster.host_link.occupies_rank = drawn % 5 == 0;
  return request;
}

class PlannerOver : public ::testing::TestWithParam<Transfers> {};

INSTANTIATE_TEST_SUITE_P(AllTransfers, PlannerOver,
                         ::testing::Values(Transfers::kSeparate, Transfers::kGrouped),
                         [](const auto& test) {
                           return test.param == Transfers::kGrouped ? "Grouped" : "Separate";
                         });

TEST_P(PlannerOver, EqualsExhaustiveSearchUnderEverySchedule) {
  std::mt19937 random(1);
  int fitting = 0;
  for (int trial = 0; trial < 120; ++trial) {
    PlannerRequest request = RandomRequest(random, /*may_recompute=*/false, GetParam());
    if (const int layers = request.profile.num_layers(); trial % 3 == 0 && layers > 1) {
      request.profile.ties = {{.layer = 0, .other_layer = layers - 1, .bytes = 640}};
      request.profile.collectives.ties = 1;
    }
    for (const schedule::Generator& generator : schedule::Generators()) {
      request.schedule = std::string(generator.name);
      request.chunks.reset();
      if (trial % 2 == 0) request.chunks = generator.chunks;
      ExpectExhaustive(request, fitting);
    }
  }
  EXPECT_GT(fitting, 300);
}

TEST_P(PlannerOver, EqualsExhaustiveSearchWithRecomputation) {
  std::mt19937 random(2);
  int fitting = 0;
  int recomputing = 0;
  for (int trial = 0; trial < 320; ++trial) {
    PlannerRequest request = RandomRequest(random, /*may_recompute=*/true, GetParam());
    for (const char* schedule : {"1f1b", "zb-h1"}) {
      request.schedule = schedule;
      ExpectExhaustive(request, fitting);
      const absl::StatusOr<PlanEvaluation> evaluation = FindPlan(request);
      recomputing += evaluation.ok() && !evaluation->plan().recomputed.empty();
    }
  }
  EXPECT_GT(fitting, 50);
  EXPECT_GE(recomputing, 3);
}

TEST_P(PlannerOver, IsNoSlowerThanAnyScheduleItMayChoose) {
  std::mt19937 random(3);
  for (int trial = 0; trial < 20; ++trial) {
    PlannerRequest request = RandomRequest(random, trial % 2 == 0, GetParam());
    request.objective = PlanObjective::kStep;
    const absl::StatusOr<PlanEvaluation> evaluation = FindPlan(request);
    double best_ns = kNone;
    for (const schedule::Generator& generator : schedule::Generators()) {
      PlannerRequest fixed = request;
      fixed.schedule = std::string(generator.name);
      const absl::StatusOr<PlanEvaluation> one = FindPlan(fixed);
      if (one.ok()) best_ns = std::min(best_ns, one->objective_ns);
      if (one.ok() && evaluation.ok()) {
        EXPECT_LE(evaluation->lower_bound_ns, one->objective_ns);
      }
    }
    if (!evaluation.ok()) {
      EXPECT_EQ(best_ns, kNone);
      continue;
    }
    EXPECT_LE(evaluation->objective_ns, best_ns);
    ExpectHonest(*evaluation, request);
  }
}

// Under other transfers, another plan may be the fastest.
TEST(FindPlan, SearchesUnderTheTransfersThatWillBePerformed) {
  std::mt19937 random(14);
  int faster = 0;
  for (int trial = 0; trial < 400; ++trial) {
    PlannerRequest request = RandomRequest(random, /*may_recompute=*/false);
    request.schedule = trial % 2 == 0 ? "1f1b" : "zb-h1";
    request.objective = PlanObjective::kStep;
    const absl::StatusOr<PlanEvaluation> separate = FindPlan(request);
    request.cluster.transfers = Transfers::kGrouped;
    const absl::StatusOr<PlanEvaluation> grouped = FindPlan(request);
    if (!separate.ok()) continue;
    const PlanEvaluation judged =
        EvaluatePlan(separate->plan(), request.profile, request.cluster).value();
    if (!CheckFits(judged).ok()) continue;
    ASSERT_OK(grouped);
    EXPECT_LE(grouped->objective_ns, judged.objective_ns);
    if (grouped->objective_ns < judged.objective_ns) ++faster;
  }
  EXPECT_GT(faster, 3);
}

// No plan under a candidate's schedule may beat the candidate's bound. Here updates take as long as
// passes, alternately within the backward pass and not; messages take much longer or no time; and
// memory is limited in every other trial.
TEST_P(PlannerOver, FindsNoPlanThatBeatsTheBounds) {
  std::mt19937 random(11);
  int compared = 0, limited = 0;
  for (int trial = 0; trial < 400; ++trial) {
    PlannerRequest request = RandomRequest(random, /*may_recompute=*/false, GetParam());
    request.profile.updates_in_backward = trial % 2 == 0;
    for (SizedLayers& sized : request.profile.sizes) {
      for (LayerCost& layer : sized.layers) layer.step_ns = static_cast<double>(random() % 2000);
    }
    request.cluster.within_host.bytes_per_second /= 1 << random() % 8;
    if (trial % 4 < 2) {
      for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = 0;
    }
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-h2", "interleaved", "zb-v"}) {
      request.schedule = schedule;
      SearchBudget none;
      auto space = CandidateSpace::Create(request, none);
      if (!space.ok()) continue;
      const double best_ns = Exhaustive(request).Best();
      if (best_ns == kNone) continue;
      double bound_ns = kNone, scheduled_ns = kNone;
      for (const Candidate& candidate : space->candidates()) {
        const auto own = space->ScheduleOf(candidate);
        if (!own.ok()) continue;
        bound_ns = std::min(bound_ns, candidate.lower_bound_ns);
        scheduled_ns = std::min(scheduled_ns, space->LowerBoundNs(candidate, &*own).value());
      }
      EXPECT_LE(bound_ns, best_ns) << schedule << " trial " << trial;
      EXPECT_LE(scheduled_ns, best_ns) << schedule << " trial " << trial;
      EXPECT_GT(bound_ns, 0.0);
      limited += request.cluster.limits_memory() ? 1 : 0;
      ++compared;
      if (trial % 4 >= 2) continue;  // the others are compared above
      const PlanEvaluation evaluation = FindPlan(request).value();
      EXPECT_EQ(evaluation.objective_ns, best_ns) << schedule << " trial " << trial;
    }
  }
  EXPECT_GT(compared, 800);
  EXPECT_GT(limited, 200);
}

// More cuts than are enumerated, and budgets that are met to the byte on unequal devices.
TEST_P(PlannerOver, FitsTheExactBudgetsOfManyLayers) {
  std::mt19937 random(12);
  for (int trial = 0; trial < 10; ++trial) {
    PlannerRequest request;
    request.profile = RandomProfile(random, 40, {1}, /*may_recompute=*/false);
    request.cluster = UniformCluster(4);
    request.cluster.transfers = GetParam();
    request.batch_rows = 8;
    request.schedule = trial % 2 == 0 ? "1f1b" : "zb-h1";
    const PlanEvaluation free = FindPlan(request).value();
    for (int rank = 0; rank < 4; ++rank) {
      request.cluster.devices[static_cast<size_t>(rank)].memory_bytes =
          free.compiled.of(schedule::Rank(rank)).peak_bytes();
    }
    const absl::StatusOr<PlanEvaluation> exact = FindPlan(request);
    ASSERT_OK(exact);
    ExpectHonest(*exact, request);
  }
}

TEST(FindPlan, CutsAGraphOnlyWhereEdgesGoForward) {
  std::mt19937 random(5);
  for (int trial = 0; trial < 30; ++trial) {
    PlannerRequest request;
    request.profile = RandomProfile(random, 7, {1}, false);
    for (int consumer = 1; consumer < 7; ++consumer) {
      for (int producer = 0; producer < consumer; ++producer) {
        if (random() % 3 == 0) request.profile.edges.push_back({producer, consumer});
      }
    }
    if (request.profile.is_chain()) continue;
    request.cluster = UniformCluster(3);
    request.batch_rows = 4;
    request.schedule = "1f1b";
    const PlanEvaluation evaluation = FindPlan(request).value();
    std::vector<int> place(7);
    for (int i = 0; i < 7; ++i) place[static_cast<size_t>(evaluation.plan().order[i])] = i;
    for (const Edge& edge : request.profile.edges) {
      EXPECT_LT(place[static_cast<size_t>(edge.producer)],
                place[static_cast<size_t>(edge.consumer)]);
    }
    ExpectHonest(evaluation, request);
  }
}

// Holds for any order, in little memory, and with replicas, whose devices have their own speeds and
// links.
TEST(FindPlan, NoPlanOfAGraphBeatsItsBound) {
  std::mt19937 random(6);
  int tight = 0, limited = 0, best = 0;
  for (int trial = 0; trial < 160; ++trial) {
    SCOPED_TRACE(trial);
    PlannerRequest request;
    request.profile = RandomProfile(random, 5, {1}, false);
    for (int consumer = 1; consumer < 5; ++consumer) {
      for (int producer = 0; producer < consumer; ++producer) {
        if (random() % 3 == 0) request.profile.edges.push_back({producer, consumer});
      }
    }
    if (request.profile.is_chain()) continue;
    const auto memory_bytes = static_cast<int64_t>(40'000 + random() % 60'000);
    request.cluster = RandomCluster(random, 4, trial % 2 == 0 ? 0 : memory_bytes);
    request.replicas = 1 << random() % 2;
    request.batch_rows = 4;
    request.schedule = trial % 8 == 7 ? "zb-h1" : "1f1b";
    if (trial % 4 < 2) request.objective = PlanObjective::kBottleneck;
    const double best_ns = Exhaustive(request).Best();
    const absl::StatusOr<PlanEvaluation> evaluation = FindPlan(request);
    if (!evaluation.ok()) continue;  // an order in which a cut fits can be missed
    ExpectHonest(*evaluation, request);
    ASSERT_GE(evaluation->objective_ns, best_ns);
    EXPECT_LE(evaluation->lower_bound_ns, best_ns);
    limited += trial % 2;
    best += evaluation->objective_ns == best_ns ? 1 : 0;
    if (evaluation->lower_bound_ns > 0.99 * evaluation->objective_ns) ++tight;
  }
  EXPECT_GT(tight, 30);
  EXPECT_GT(limited, 25);
  EXPECT_GT(best, 40);
}

}  // namespace
}  // namespace stagecoach::partition
