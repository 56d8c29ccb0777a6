// Random requests, against exhaustive search where that ends.
#include <algorithm>
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
#include "partition/search/candidates.h"
#include "partition/search/planner.h"
#include "partition/search/receipt_of.h"
#include "schedule/generators.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using schedule::Transfers;

constexpr double kNone = std::numeric_limits<double>::infinity();

// Layers of whole-number times at the given sizes: twice the rows take less than twice the time.
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
    if (random() % 8 == 0) device.memory_bytes = 0;  // without limit
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

// All ways to write `sum` as a sequence of `parts` positive numbers.
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

// Every plan of one schedule that the request allows, each judged by its receipt.
class Exhaustive {
 public:
  explicit Exhaustive(const PlannerRequest& request) : request_(request) {}

  double Best() {
    for (int replicas = 1; replicas <= request_.cluster.size(); replicas *= 2) {
      if (request_.cluster.size() % replicas != 0) continue;
      if (request_.replicas.value_or(replicas) != replicas) continue;
      for (const SizedLayers& size : request_.profile.sizes) {
        TryRows({replicas, request_.gradient_blocks.value_or(replicas),
                 request_.shards_optimizer && replicas > 1},
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

  // Those that a request leaves open: up to four.
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

  // All topological orders of a graph.
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
      const absl::StatusOr<Receipt> receipt =
          ReceiptOf(plan, request_.profile, request_.cluster, request_.objective);
      ASSERT_OK(receipt);
      if (CheckFits(*receipt).ok()) best_ns_ = std::min(best_ns_, receipt->objective_ns);
    }
  }

  const PlannerRequest& request_;
  double best_ns_ = kNone;
};

// That the answer is one the engine could run: consistent, within memory, and worth what it says.
void ExpectHonest(const Receipt& receipt, const PlannerRequest& request) {
  EXPECT_OK(CheckFits(receipt));
  const absl::StatusOr<Receipt> again =
      ReceiptOf(receipt.plan, request.profile, request.cluster, request.objective);
  ASSERT_OK(again);
  EXPECT_EQ(again->objective_ns, receipt.objective_ns);
  EXPECT_LE(receipt.lower_bound_ns, receipt.objective_ns);
  EXPECT_EQ(receipt.plan.batch_rows(), request.batch_rows);
  EXPECT_EQ(receipt.plan.num_devices(), request.cluster.size());
}

void ExpectExhaustive(const PlannerRequest& request, int& fitting) {
  const double expected_ns = Exhaustive(request).Best();
  const absl::StatusOr<Receipt> receipt = PlanJointly(request);
  if (expected_ns == kNone) {
    EXPECT_FALSE(receipt.ok());
    return;
  }
  ASSERT_OK(receipt);
  EXPECT_EQ(receipt->objective_ns, expected_ns) << request.schedule;
  ExpectHonest(*receipt, request);
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
  request.batch_rows = 4 + 4 * static_cast<int64_t>(random() % 2);
  request.objective = random() % 4 == 0 ? PlanObjective::kBottleneck : PlanObjective::kStep;
  request.may_recompute = may_recompute;
  if (random() % 2 == 0) request.replicas.reset();
  if (random() % 3 == 0) request.gradient_blocks = 1 << random() % 3;
  if (random() % 3 == 0) request.profile.collectives.norm_bytes = 8 * layers;
  request.shards_optimizer = !request.replicas.has_value() && random() % 2 == 0 && devices % 2 == 0;
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
      const absl::StatusOr<Receipt> receipt = PlanJointly(request);
      recomputing += receipt.ok() && !receipt->plan.recomputed.empty();
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
    const absl::StatusOr<Receipt> receipt = PlanJointly(request);
    double best_ns = kNone;
    for (const schedule::Generator& generator : schedule::Generators()) {
      PlannerRequest fixed = request;
      fixed.schedule = std::string(generator.name);
      const absl::StatusOr<Receipt> one = PlanJointly(fixed);
      if (one.ok()) best_ns = std::min(best_ns, one->objective_ns);
      if (one.ok() && receipt.ok()) {
        EXPECT_LE(receipt->lower_bound_ns, one->objective_ns);
      }
    }
    if (!receipt.ok()) {
      EXPECT_EQ(best_ns, kNone);
      continue;
    }
    EXPECT_LE(receipt->objective_ns, best_ns);
    ExpectHonest(*receipt, request);
  }
}

// With others, another plan may be the fastest.
TEST(PlanJointly, SearchesUnderTheTransfersThatWillBePerformed) {
  std::mt19937 random(14);
  int faster = 0;
  for (int trial = 0; trial < 400; ++trial) {
    PlannerRequest request = RandomRequest(random, /*may_recompute=*/false);
    request.schedule = trial % 2 == 0 ? "1f1b" : "zb-h1";
    request.objective = PlanObjective::kStep;
    const absl::StatusOr<Receipt> separate = PlanJointly(request);
    request.cluster.transfers = Transfers::kGrouped;
    const absl::StatusOr<Receipt> grouped = PlanJointly(request);
    if (!separate.ok()) continue;
    const Receipt judged = ReceiptOf(separate->plan, request.profile, request.cluster).value();
    if (!CheckFits(judged).ok()) continue;
    ASSERT_OK(grouped);
    EXPECT_LE(grouped->objective_ns, judged.objective_ns);
    if (grouped->objective_ns < judged.objective_ns) ++faster;
  }
  EXPECT_GT(faster, 3);
}

// What a candidate's bound says, no plan under its schedule may beat. Updates take as long as
// passes here, in turn part of the backward pass and not.
TEST_P(PlannerOver, FindsNoPlanThatBeatsTheBounds) {
  std::mt19937 random(11);
  int compared = 0;
  for (int trial = 0; trial < 400; ++trial) {
    PlannerRequest request = RandomRequest(random, /*may_recompute=*/false, GetParam());
    request.profile.updates_in_backward = trial % 2 == 0;
    for (SizedLayers& sized : request.profile.sizes) {
      for (LayerCost& layer : sized.layers) layer.step_ns = static_cast<double>(random() % 2000);
    }
    for (ClusterDevice& device : request.cluster.devices) device.memory_bytes = 0;
    for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-h2", "interleaved", "zb-v"}) {
      request.schedule = schedule;
      Cutoff none;
      const auto space = CandidateSpace::Create(request, none);
      if (!space.ok()) continue;
      const double best_ns = Exhaustive(request).Best();
      if (best_ns == kNone) continue;
      double bound_ns = kNone;
      for (const Candidate& candidate : space->candidates()) {
        if (!space->ScheduleOf(candidate).ok()) continue;
        bound_ns = std::min(bound_ns, candidate.lower_bound_ns);
      }
      EXPECT_LE(bound_ns, best_ns) << schedule << " trial " << trial;
      EXPECT_GT(bound_ns, 0.0);
      const Receipt receipt = PlanJointly(request).value();
      EXPECT_EQ(receipt.objective_ns, best_ns) << schedule << " trial " << trial;
      ++compared;
    }
  }
  EXPECT_GT(compared, 800);
}

// More cuts than are enumerated, budgets that are met to the byte on unequal devices.
TEST_P(PlannerOver, FitsTheExactBudgetsOfManyLayers) {
  std::mt19937 random(12);
  for (int trial = 0; trial < 10; ++trial) {
    PlannerRequest request;
    request.profile = RandomProfile(random, 40, {1}, /*may_recompute=*/false);
    request.cluster = UniformCluster(4);
    request.cluster.transfers = GetParam();
    request.batch_rows = 8;
    request.schedule = trial % 2 == 0 ? "1f1b" : "zb-h1";
    const Receipt free = PlanJointly(request).value();
    for (int rank = 0; rank < 4; ++rank) {
      request.cluster.devices[static_cast<size_t>(rank)].memory_bytes =
          free.report.of(schedule::Rank(rank)).peak_bytes();
    }
    const absl::StatusOr<Receipt> exact = PlanJointly(request);
    ASSERT_OK(exact);
    ExpectHonest(*exact, request);
  }
}

TEST(PlanJointly, CutsAGraphOnlyWhereEdgesGoForward) {
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
    const Receipt receipt = PlanJointly(request).value();
    std::vector<int> place(7);
    for (int i = 0; i < 7; ++i) place[static_cast<size_t>(receipt.plan.order[i])] = i;
    for (const Edge& edge : request.profile.edges) {
      EXPECT_LT(place[static_cast<size_t>(edge.producer)],
                place[static_cast<size_t>(edge.consumer)]);
    }
    ExpectHonest(receipt, request);
  }
}

// Whatever the order, in little memory, and with replicas, whose devices have speeds and links of
// their own.
TEST(PlanJointly, NoPlanOfAGraphBeatsItsBound) {
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
    request.schedule = "1f1b";
    if (trial % 4 < 2) request.objective = PlanObjective::kBottleneck;
    const double best_ns = Exhaustive(request).Best();
    const absl::StatusOr<Receipt> receipt = PlanJointly(request);
    if (!receipt.ok()) continue;  // an order in which a cut fits can be missed
    ExpectHonest(*receipt, request);
    ASSERT_GE(receipt->objective_ns, best_ns);
    EXPECT_LE(receipt->lower_bound_ns, best_ns);
    limited += trial % 2;
    best += receipt->objective_ns == best_ns ? 1 : 0;
    if (receipt->lower_bound_ns > 0.99 * receipt->objective_ns) ++tight;
  }
  EXPECT_GT(tight, 30);
  EXPECT_GT(limited, 30);
  EXPECT_GT(best, 40);
}

}  // namespace
}  // namespace stagecoach::partition
