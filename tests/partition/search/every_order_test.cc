// Compares tiny requests with every order in every cut.
#include "partition/search/every_order.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "partition/search/planner.h"
#include "schedule/ir/placement.h"
#include "tests/partition/random_layers.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::partition {
namespace {

using schedule::Action;
using schedule::MicroBatch;
using schedule::Op;
using schedule::Placement;
using schedule::Rank;
using schedule::Schedule;
using schedule::StageId;

constexpr double kNothing = std::numeric_limits<double>::infinity();

// All lists of one rank in which each of its stages takes the micro-batches in order.
class RankLists {
 public:
  RankLists(std::vector<StageId> stages, int micro_batches)
      : stages_(std::move(stages)), micro_batches_(micro_batches), done_(stages_.size()) {
    Extend();
  }
  std::vector<std::vector<Action>> lists;

 private:
  struct Done {
    int forward = 0, backward = 0, weight = 0;
  };

  void Extend() {
    bool is_complete = true;
    for (size_t i = 0; i < stages_.size(); ++i) {
      const auto [f, b, w] = done_[i];
      is_complete = is_complete && w == micro_batches_;
      if (f < micro_batches_) Try(i, Op::kForward, f, {f + 1, b, w});
      if (b < f) Try(i, Op::kBackwardInput, b, {f, b + 1, w});
      if (b < f && w == b) Try(i, Op::kBackward, b, {f, b + 1, w + 1});
      if (w < b) Try(i, Op::kBackwardWeight, w, {f, b, w + 1});
    }
    if (is_complete) lists.push_back(list_);
  }

  void Try(size_t i, Op op, int micro_batch, Done after) {
    const Done before = std::exchange(done_[i], after);
    list_.push_back({.op = op, .stage = stages_[i], .micro_batch = MicroBatch(micro_batch)});
    Extend();
    list_.pop_back();
    done_[i] = before;
  }

  const std::vector<StageId> stages_;
  const int micro_batches_;
  std::vector<Done> done_;
  std::vector<Action> list_;
};

// Finds the step of the best plan of a request that names its number of chunks, by simulating every
// order in every cut with every choice of layers that recompute; infinity if none fits.
class EveryOrderAndCut {
 public:
  explicit EveryOrderAndCut(const PlannerRequest& request) : request_(request) {}

  double Best() {
    SearchBudget never;
    CandidateSpace space = CandidateSpace::Create(request_, never).value();
    const int ranks = request_.cluster.size();
    Schedule schedule;
    schedule.name = "any";
    schedule.num_micro_batches = *request_.micro_batches;
    schedule.actions.resize(static_cast<size_t>(ranks));
    for (const Placement placement : {Placement::kLoop, Placement::kV}) {
      if (placement == Placement::kV && request_.chunks != 2) continue;
      schedule.rank_of_stage = schedule::PlaceStages(placement, ranks, *request_.chunks);
      lists_.clear();
      for (int r = 0; r < ranks; ++r) {
        lists_.push_back(RankLists(schedule.StagesOf(Rank(r)), *request_.micro_batches).lists);
      }
      Choose(0, schedule, [&] {
        absl::StatusOr<CutEvaluator> pipeline =
            space.EvaluatorOf(space.candidates().front(), schedule);
        if (pipeline.ok()) TryCuts(*pipeline, {0});
      });
    }
    return best_ns_;
  }

 private:
  void Choose(size_t rank, Schedule& schedule, const std::function<void()>& body) {
    if (rank == lists_.size()) return body();
    for (const std::vector<Action>& list : lists_[rank]) {
      schedule.actions[rank] = list;
      Choose(rank + 1, schedule, body);
    }
  }

  void TryCuts(CutEvaluator& pipeline, std::vector<int> first_layer) {
    const int stage = static_cast<int>(first_layer.size());
    if (stage == pipeline.num_stages()) return TryRecomputation(pipeline, first_layer);
    const int layers = pipeline.num_layers();
    for (int first = first_layer.back() + 1; first <= layers - pipeline.num_stages() + stage;
         ++first) {
      std::vector<int> longer = first_layer;
      longer.push_back(first);
      TryCuts(pipeline, std::move(longer));
    }
  }

  void TryRecomputation(CutEvaluator& pipeline, const std::vector<int>& first_layer) {
    std::vector<int> able;
    for (int layer = 0; layer < pipeline.num_layers() && request_.may_recompute; ++layer) {
      const LayerCost& cost = pipeline.layers().layers[static_cast<size_t>(layer)];
      if (cost.recompute_stash_bytes.has_value()) able.push_back(layer);
    }
    for (unsigned set = 0; set < 1U << able.size(); ++set) {
      CutEvaluator::Cut cut = {first_layer, {}};
      for (size_t i = 0; i < able.size(); ++i) {
        if ((set >> i & 1U) != 0) cut.recomputed.push_back(able[i]);
      }
      const auto step_ns = static_cast<double>(pipeline.StepNs(cut).value());
      if (step_ns >= best_ns_ || pipeline.ExcessBytes(cut).value() > 0) continue;
      best_ns_ = step_ns;
    }
  }

  const PlannerRequest& request_;
  std::vector<std::vector<std::vector<Action>>> lists_;  // index: rank
  double best_ns_ = kNothing;
};

std::vector<LayerCost> NamedLayers(std::mt19937& random, int count) {
  std::vector<LayerCost> layers = RandomLayers(random, count);
  for (size_t i = 0; i < layers.size(); ++i) {
    layers[i].name = "layer." + std::to_string(i);
    for (double* const ns :
         {&layers[i].forward_ns, &layers[i].backward_input_ns, &layers[i].backward_weight_ns}) {
      *ns = static_cast<double>(100 + random() % 900);
    }
    layers[i].shared_backward_ns = 0;
  }
  return layers;
}

PlannerRequest TinyRequest(std::mt19937& random) {
  const auto draw = [&](int count) { return static_cast<int>(random() % count); };
  PlannerRequest request;
  const int ranks = draw(5) == 0 ? 3 : 2;
  request.chunks = ranks == 2 && draw(4) == 0 ? 2 : 1;
  request.micro_batches = *request.chunks == 2 ? 1 : 2;
  request.batch_rows = *request.micro_batches;
  request.replicas = 1;
  const int stages = ranks * *request.chunks;
  SizedLayers sized = {.micro_batch_rows = 1,
                       .layers = NamedLayers(random, stages + draw(ranks == 3 ? 2 : 3))};
  request.may_recompute = ranks == 2 && draw(4) == 0;
  for (LayerCost& layer : sized.layers) {
    layer.shared_backward_ns = draw(3) == 0 ? draw(100) : 0;
    layer.step_ns = draw(3) == 0 ? draw(1000) : 0;
    if (request.may_recompute) layer.recompute_stash_bytes = layer.memory.stash_bytes / 4;
  }
  request.profile = {.model = "tiny", .sizes = {sized}, .edges = {}};
  request.profile.updates_in_backward = draw(4) == 0;
  if (draw(4) == 0) request.profile.collectives.norm_bytes = 64;
  request.cluster = UniformCluster(ranks);
  const int64_t memory_bytes = draw(2) == 0 ? 0 : 10'000 + draw(60'000);
  for (ClusterDevice& device : request.cluster.devices) {
    if (draw(3) == 0) device.speed = 0.5;
    if (draw(4) != 0) device.memory_bytes = memory_bytes;
  }
  if (draw(2) == 0) {
    request.cluster.within_host = {.latency_ns = draw(200), .bytes_per_second = 4e10};
  }
  request.cluster.overlaps_messages = draw(3) != 0;
  if (draw(3) == 0) request.cluster.transfers = schedule::Transfers::kGrouped;
  return request;
}

TEST(EveryOrder, IsTheBestOfAllThatCanBeSimulated) {
  std::mt19937 random(1);
  int fitting = 0, proved = 0, limited = 0;
  for (int trial = 0; trial < 60; ++trial) {
    SCOPED_TRACE(trial);
    const PlannerRequest request = TinyRequest(random);
    const double best_ns = EveryOrderAndCut(request).Best();
    const absl::StatusOr<PlanEvaluation> evaluation = FindPlan(request);
    ASSERT_EQ(evaluation.ok(), best_ns != kNothing);
    if (!evaluation.ok()) continue;
    ++fitting;
    limited += request.cluster.limits_memory() ? 1 : 0;
    EXPECT_OK(CheckFits(*evaluation));
    EXPECT_EQ(evaluation->objective_ns, best_ns);
    EXPECT_LE(evaluation->lower_bound_ns, best_ns);
    proved += evaluation->lower_bound_ns == best_ns ? 1 : 0;
  }
  EXPECT_GT(fitting, 30);
  EXPECT_GT(limited, 10);
  EXPECT_GT(proved, fitting - 3);
}

// Seven different layers on two slow devices and a fast one: every named schedule takes 51.432 ms
// or more.
TEST(EveryOrder, FindsWhatNoScheduleHas) {
  const double times_ms[][4] = {{1.245, 0.588, 2.600, 1.006}, {2.715, 0.426, 1.663, 0.000},
                                {0.315, 1.261, 2.110, 0.000}, {2.230, 0.640, 0.714, 1.013},
                                {2.787, 1.853, 2.323, 0.000}, {2.289, 0.485, 0.874, 0.000},
                                {2.232, 1.381, 0.263, 0.420}};
  SizedLayers sized = {.micro_batch_rows = 1, .layers = {}};
  for (const auto& [forward_ms, input_ms, weight_ms, step_ms] : times_ms) {
    sized.layers.push_back({.name = "layer." + std::to_string(sized.layers.size()),
                            .forward_ns = 1e6 * forward_ms,
                            .backward_input_ns = 1e6 * input_ms,
                            .backward_weight_ns = 1e6 * weight_ms,
                            .step_ns = 1e6 * step_ms});
  }
  PlannerRequest request;
  request.profile = {.model = "seven", .sizes = {sized}, .edges = {}};
  request.cluster = UniformCluster(3);
  request.cluster.devices[0].speed = request.cluster.devices[1].speed = 0.5;
  request.batch_rows = 2;
  request.micro_batches = 2;
  request.chunks = 1;
  const PlanEvaluation evaluation = FindPlan(request).value();
  EXPECT_EQ(evaluation.objective_ns, 48'106'000);
  EXPECT_EQ(evaluation.lower_bound_ns, evaluation.objective_ns);
  EXPECT_EQ(evaluation.choice.schedule, "auto");
  ASSERT_TRUE(evaluation.runner_up.has_value());
  EXPECT_EQ(evaluation.runner_up->objective_ns, 51'432'000);
}

// Four ranks with four micro-batches each have too many orders to simulate all.
TEST(EveryOrder, ProvesTheBestOfFourRanksWithFourMicroBatches) {
  std::mt19937 random(2);
  for (int trial = 0; trial < 5; ++trial) {
    const SizedLayers sized = {.micro_batch_rows = 1, .layers = NamedLayers(random, 8)};
    PlannerRequest request;
    request.profile = {.model = "eight", .sizes = {sized}, .edges = {}};
    request.cluster = UniformCluster(4);
    request.batch_rows = 4;
    request.micro_batches = 4;
    request.chunks = 1;
    const PlanEvaluation evaluation = FindPlan(request).value();
    EXPECT_EQ(evaluation.lower_bound_ns, evaluation.objective_ns) << trial;
  }
}

TEST(EveryOrder, SaysThatItDidNotSearchWhatItDidNot) {
  std::mt19937 random(3);
  PlannerRequest request = TinyRequest(random);
  request.profile.sizes.front().layers = NamedLayers(random, 6);
  request.cluster = UniformCluster(2);
  request.chunks = 1;
  request.batch_rows = 5;
  request.micro_batches = 5;  // 15 passes on each rank
  const PlanEvaluation evaluation = FindPlan(request).value();
  EXPECT_LT(evaluation.lower_bound_ns, evaluation.objective_ns);
}

}  // namespace
}  // namespace stagecoach::partition
