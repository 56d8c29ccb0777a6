#include "partition/bounds/step_bounds.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "partition/bounds/boundaries.h"
#include "tests/partition/random_layers.h"

namespace stagecoach::partition {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kClose = 0.995;  // bounds are at least this share of the known value

// Returns layers with F, B and W of a microsecond each; 1,000 bytes pass each boundary, and the
// same are stashed.
std::vector<LayerCost> EqualLayers(int count) {
  LayerCost layer = {.forward_ns = 1000, .backward_input_ns = 1000, .backward_weight_ns = 1000};
  layer.memory = {
      .parameter_bytes = 100, .input_bytes = 1000, .output_bytes = 1000, .stash_bytes = 1000};
  return std::vector<LayerCost>(static_cast<size_t>(count), layer);
}

// A request for `ranks` equal devices, whose links take `message_ns` for such a message.
struct Request {
  std::vector<LayerCost> layers;
  int ranks = 2;
  int micro_batches = 4;
  int64_t message_ns = 0;
  std::vector<Edge> edges = {};
  std::vector<int> in_flight = {};
  double memory_bytes = kNever;
  int chunks = 1;
  bool sends_block = false;
  bool is_fused = false;
  std::vector<double> speeds = {};  // none: all 1
};

double BoundOf(const Request& request, bool is_over = false) {
  const LayerTable table(request.layers, EndMemory());
  double at_least_ns = 0;  // the total work
  for (const LayerCost& layer : request.layers) {
    at_least_ns += layer.batch_ns(request.micro_batches) / request.ranks;
  }
  const std::vector<Boundary> boundaries = BoundariesOf(table, request.edges, request.micro_batches,
                                                        Replication(), /*may_recompute=*/true);
  StepBoundProblem problem = {.boundaries = boundaries,
                              .speeds = std::vector<double>(static_cast<size_t>(request.ranks), 1),
                              .chunks = request.chunks,
                              .micro_batches = request.micro_batches,
                              .is_fused = request.is_fused,
                              .sends_block = request.sends_block,
                              .in_flight = request.in_flight};
  if (!request.speeds.empty()) problem.speeds = request.speeds;
  problem.memory_bytes.assign(problem.speeds.size(), request.memory_bytes);
  problem.forward_links.assign(problem.speeds.size(), {.latency_ns = request.message_ns});
  problem.backward_links = problem.forward_links;
  return StepBoundNs(problem, at_least_ns, kNever, [&] { return is_over; });
}

void ExpectClose(const Request& request, double known_ns) {
  const double bound_ns = BoundOf(request);
  EXPECT_LE(bound_ns, known_ns);
  EXPECT_GE(bound_ns, kClose * known_ns);
}

// One micro-batch goes there and back again, with a message between any two ranks.
TEST(StepBounds, OneMicroBatchPassesAllLayersAndMessages) {
  for (const bool sends_block : {false, true}) {
    ExpectClose({.layers = EqualLayers(4),
                 .ranks = 4,
                 .micro_batches = 1,
                 .message_ns = 700,
                 .sends_block = sends_block,
                 .is_fused = true},
                4 * 3000.0 + 2 * 3 * 700.0);
  }
}

TEST(StepBounds, MessagesPassABoundaryOneAfterTheOther) {
  // F, ten messages, the last F and B, a message and B.
  ExpectClose({.layers = EqualLayers(2), .micro_batches = 10, .message_ns = 50'000},
              1000 + 10 * 50'000.0 + 2000 + 50'000 + 1000);
}

TEST(StepBounds, SendsTakeTheirRanksTimeWhereTheyBlock) {
  // The middle rank is reached after F and a message, and sends 10 messages of each kind.
  ExpectClose({.layers = EqualLayers(3),
               .ranks = 3,
               .micro_batches = 10,
               .message_ns = 400,
               .sends_block = true},
              1000 + 400 + 10 * (3000.0 + 2 * 400));
}

TEST(StepBounds, AStageWaitsForWhatItHasInFlight) {
  // The first stage holds two, each of which passes both ranks and two messages before another.
  const double turn_ns = 2 * 3000.0 + 2 * 5000;
  const Request request = {.layers = EqualLayers(2),
                           .micro_batches = 10,
                           .message_ns = 5000,
                           .in_flight = {2, 1},
                           .is_fused = true};
  ExpectClose(request, 5 * turn_ns);
}

TEST(StepBounds, MemoryLimitsWhatAStageHasInFlight) {
  Request request = {
      .layers = EqualLayers(2), .micro_batches = 10, .message_ns = 5000, .is_fused = true};
  const double turn_ns = 2 * 3000.0 + 2 * 5000;
  request.memory_bytes = 2 * 100 + 3 * 1000;  // parameters and their gradients; three stashes
  ExpectClose(request, 4 * turn_ns);
  request.memory_bytes -= 1;
  ExpectClose(request, 5 * turn_ns);
}

// Two branches of which only one ends in small messages.
TEST(StepBounds, AGraphIsDividedWhereLeastPasses) {
  std::vector<LayerCost> layers = EqualLayers(4);
  for (const size_t large : {0, 1}) layers[large].memory.output_bytes = 1'000'000;
  const std::vector<Edge> edges = {{0, 1}, {0, 2}, {1, 3}, {2, 3}};
  const LayerTable table(std::move(layers), EndMemory());
  const std::vector<Boundary> boundaries = BoundariesOf(table, edges, 1, Replication(), true);
  ASSERT_EQ(boundaries.size(), 6);  // {0}; {0 1}; {0 2}; {0 1 2}; and both ends
  EXPECT_EQ(boundaries[1].forward_bytes, 1'000'000);
  EXPECT_EQ(boundaries[2].forward_bytes + boundaries[3].forward_bytes, 3'001'000);
  EXPECT_EQ(boundaries[4].forward_bytes, 1'001'000);
}

// A graph with more closed sets than are listed: each closed set, generated at random, is within
// some boundary.
TEST(StepBounds, BoundariesByWorkCoverEveryClosedSet) {
  std::mt19937 random(1);
  constexpr int kLayers = 60;  // 20 branches of three: 4^20 sets
  std::vector<LayerCost> layers = RandomLayers(random, kLayers);
  std::vector<Edge> edges;
  for (int i = 0; i + 20 < kLayers; ++i) edges.push_back({i, i + 20});
  const LayerTable table(layers, EndMemory());
  const std::vector<Boundary> boundaries = BoundariesOf(table, edges, 3, Replication(), false);
  EXPECT_FALSE(boundaries[1].is_single);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<bool> is_done(kLayers);
    double work_ns = 0, turn_ns = 0;
    int64_t bytes = 0;
    for (int branch = 0; branch < 20; ++branch) {
      const auto done = static_cast<int>(random() % 4);
      for (int i = 0; i < done; ++i) {
        const LayerCost& layer = layers[static_cast<size_t>(branch + 20 * i)];
        work_ns += layer.batch_ns(3);
        turn_ns += layer.forward_ns + layer.backward_input_ns;
        if (i + 1 == done && done < 3) bytes += layer.memory.output_bytes;
      }
    }
    bool is_covered = false;
    for (const Boundary& boundary : boundaries) {
      is_covered =
          is_covered || (boundary.least[kWorkNs] <= work_ns && work_ns <= boundary.most[kWorkNs] &&
                         boundary.least[kTurnNs] <= turn_ns && turn_ns <= boundary.most[kTurnNs] &&
                         boundary.forward_bytes <= bytes);
    }
    EXPECT_TRUE(is_covered) << trial;
  }
}

// If a few boundaries stand for many, the bound holds, and is about the same.
TEST(StepBounds, ManyLayersArePutTogether) {
  std::vector<LayerCost> layers = EqualLayers(kMostBoundaries);
  for (LayerCost& layer : layers) {
    for (double* ns : {&layer.forward_ns, &layer.backward_input_ns, &layer.backward_weight_ns}) {
      *ns *= 3;
    }
  }
  const auto bound_ns = [](std::vector<LayerCost> of_layers) {
    return BoundOf({.layers = std::move(of_layers),
                    .ranks = 4,
                    .micro_batches = 8,
                    .message_ns = 100'000,
                    .is_fused = true});
  };
  const double few_ns = bound_ns(layers), many_ns = bound_ns(EqualLayers(3 * kMostBoundaries));
  EXPECT_LE(many_ns, 1.01 * few_ns);
  EXPECT_GE(many_ns, 0.98 * few_ns);
}

// However many boundaries stand for several, what a micro-batch takes in all stages is not lost.
TEST(StepBounds, PutTogetherOneMicroBatchStillPassesAllLayers) {
  constexpr int kLayers = 5 * kMostBoundaries;
  ExpectClose({.layers = EqualLayers(kLayers),
               .ranks = 32,
               .micro_batches = 1,
               .message_ns = 1000,
               .is_fused = true},
              kLayers * 3000.0 + 2 * 31 * 1000.0);
}

// What fast ranks cannot take within the step is left to slow ones, through which every micro-batch
// passes. For every cut the step is at least what one micro-batch takes in all stages, and all
// others in one of them, forward or backward; and at least what the fullest rank takes after those
// before it.
TEST(StepBounds, SlowRanksTakeTheRest) {
  const std::vector<double> speeds = {1, 1, 0.25, 0.25};
  constexpr int kLayers = 12, kMicroBatches = 10;
  double least_ns = kNever;
  for (int a = 1; a < kLayers; ++a) {
    for (int b = a + 1; b < kLayers; ++b) {
      for (int c = b + 1; c < kLayers; ++c) {
        const int counts[] = {a, b - a, c - b, kLayers - c};
        double all_ns = 0, own_ns = 0, most_ns = 0;
        for (size_t rank = 0; rank < speeds.size(); ++rank) {
          const double turn_ns = counts[rank] * 3000.0 / speeds[rank];
          own_ns = std::max(own_ns, all_ns + kMicroBatches * turn_ns);
          most_ns = std::max(most_ns, turn_ns * 2 / 3);
          all_ns += turn_ns;
        }
        least_ns = std::min(least_ns, std::max(own_ns, all_ns + (kMicroBatches - 1) * most_ns));
      }
    }
  }
  const double bound_ns = BoundOf({.layers = EqualLayers(kLayers),
                                   .ranks = 4,
                                   .micro_batches = kMicroBatches,
                                   .is_fused = true,
                                   .speeds = speeds});
  EXPECT_LE(bound_ns, least_ns);
  EXPECT_GE(bound_ns, 0.9 * least_ns);
}

// One micro-batch passes all layers, and all BW but one of some rank come in addition.
TEST(StepBounds, ATurnIsPartOfThemWhateverTheTime) {
  const Request request = {
      .layers = EqualLayers(8), .ranks = 8, .micro_batches = 5, .is_fused = true};
  EXPECT_NEAR(BoundOf(request, /*is_over=*/true), 8 * 3000 + 4 * 2000, 150);
  EXPECT_GE(BoundOf(request), BoundOf(request, /*is_over=*/true));
}

// The messages of each of a rank's stages count.
TEST(StepBounds, SeveralStagesPerRankSendMore) {
  const Request request = {.layers = EqualLayers(8),
                           .ranks = 2,
                           .micro_batches = 10,
                           .message_ns = 10'000,
                           .chunks = 2,
                           .sends_block = true};
  // The boundary after the first two stages may be within a rank: there is one before it and at
  // least one behind.
  EXPECT_GE(BoundOf(request), (10 * 8 * 3000.0 + 10 * 2 * 10'000) / 2);
}

}  // namespace
}  // namespace stagecoach::partition
