#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/ops/attention/attention_kernels.h"
#include "kernels/cuda/ops/attention/attention_shape.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/kernels/ops/attention_bounds.h"
#include "tests/testing/close_to.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/tolerance.h"

// Each kernel as it was compiled, called through its launcher. The operation that uses them has its
// own tests (tests/kernels/ops/attention_test.cc).
namespace stagecoach::kernels::attention_tiled_test {
namespace {

using reference::Vector;
using testing::CloseTo;
using testing::EmulatedGpu;
using testing::HasWarpgroupProducts;
using testing::InEveryOrder;
using testing::RandomNormal;
using testing::RoundedTo;
using testing::StoredBound;
using testing::ToDouble;

constexpr DType kType = DType::kBfloat16;

// Operands and results. The statistics and the row sums are the exact ones, rounded.
struct Problem {
  // qkv is normal with the given deviation.
  explicit Problem(const AttentionShape& shape_in, float deviation = 1.0F,
                   const std::vector<int32_t>& of_sample = {})
      : shape(shape_in) {
    shape.has_documents = !of_sample.empty();
    for (int64_t b = 0; b < shape.samples && shape.has_documents; ++b) {
      for (int64_t t = 0, next = 0; t < shape.positions; ++t) {
        if (next < std::ssize(of_sample) && of_sample[static_cast<size_t>(next)] == t) ++next;
        documents.push_back(next == 0 ? 0 : of_sample[static_cast<size_t>(next - 1)]);
      }
    }
    const int64_t rows = shape.samples * shape.positions;
    qkv = RandomNormal(rows * packed(), 1);
    for (float& value : qkv) value *= deviation;
    qkv = RoundedTo(kType, qkv);
    dy = RoundedTo(kType, RandomNormal(rows * shape.heads * shape.head_size, 2));
    exact = reference::AttentionForward(shape, ToDouble(qkv), documents);
    statistics.assign(exact.statistics.begin(), exact.statistics.end());
    row_sums.resize(statistics.size());
    const auto T = static_cast<size_t>(shape.positions), H = static_cast<size_t>(shape.heads);
    const auto D = static_cast<size_t>(shape.head_size);
    for (size_t i = 0; i < exact.y.size(); ++i) {
      const size_t row = i / (H * D), head = i / D % H;
      row_sums[(row / T * H + head) * T + row % T] += static_cast<float>(exact.y[i]) * dy[i];
    }
  }
  int64_t packed() const { return (shape.heads + 2 * shape.kv_heads) * shape.head_size; }
  int64_t first_key() const { return shape.heads * shape.head_size; }
  int64_t first_value() const { return first_key() + shape.kv_heads * shape.head_size; }

  // A head's queries, keys and values are slices of one tensor.
  AttentionArguments Arguments(EmulatedGpu& gpu) const {
    const Tensor operand = gpu.Operand(kType, qkv);
    return {.samples = shape.samples,
            .positions = shape.positions,
            .heads = shape.heads,
            .kv_heads = shape.kv_heads,
            .head_size = shape.head_size,
            .factors = FactorsOf(shape),
            .window = WindowOf(shape),
            .documents = documents.empty() ? nullptr : gpu.Upload<int32_t>(documents),
            .q = {operand.bf16(), packed()},
            .k = {operand.bf16() + first_key(), packed()},
            .v = {operand.bf16() + first_value(), packed()}};
  }
  AttentionArguments ArgumentsOfGradient(EmulatedGpu& gpu, const Tensor& dqkv) const {
    AttentionArguments arguments = Arguments(gpu);
    arguments.statistics = gpu.Operand(DType::kFloat32, statistics).f32();
    arguments.row_sums = gpu.Operand(DType::kFloat32, row_sums).f32();
    arguments.dy = gpu.Operand(kType, dy).data;
    arguments.dq = {dqkv.bf16(), packed()};
    arguments.dk = {dqkv.bf16() + first_key(), packed()};
    arguments.dv = {dqkv.bf16() + first_value(), packed()};
    return arguments;
  }

  AttentionShape shape;
  std::vector<int32_t> documents;  // (B, T); empty: none
  std::vector<float> qkv, dy, statistics, row_sums;
  reference::AttentionOutput exact;
};

Vector Stored(Vector bounds, const Vector& expected) {
  for (size_t i = 0; i < bounds.size(); ++i) {
    bounds[i] = StoredBound(expected[i], bounds[i], kType);
  }
  return bounds;
}

// (T, D/2) cosines and sines of arbitrary angles.
std::vector<float2> Turns(const AttentionShape& shape) {
  std::vector<float2> turns;
  for (int64_t i = 0; i < shape.positions * shape.head_size / 2; ++i) {
    const double angle = 0.7 * static_cast<double>(i % 101);
    turns.push_back({static_cast<float>(std::cos(angle)), static_cast<float>(std::sin(angle))});
  }
  return turns;
}

// Rotates the gradients of queries and keys back; with `magnitudes` by the absolute values.
void TurnBack(const Problem& problem, const std::vector<float2>& turns, bool magnitudes,
              Vector& dqkv) {
  const auto packed = static_cast<size_t>(problem.packed());
  const auto turned = static_cast<size_t>(problem.first_value());
  const auto T = static_cast<size_t>(problem.shape.positions);
  const size_t D = static_cast<size_t>(problem.shape.head_size), half = D / 2;
  for (size_t i = 0; i < dqkv.size(); ++i) {
    if (i % packed >= turned || i % packed % D >= half) continue;
    const float2 turn = turns[i / packed % T * half + i % packed % D];
    const double a = dqkv[i], b = dqkv[i + half], cosine = turn.x, sine = turn.y;
    dqkv[i] = magnitudes ? std::fabs(cosine) * a + std::fabs(sine) * b : cosine * a + sine * b;
    dqkv[i + half] =
        magnitudes ? std::fabs(cosine) * b + std::fabs(sine) * a : cosine * b - sine * a;
  }
}

// Returns all kernels for the gradients, those by warpgroups included if the GPU can run them.
std::vector<AttentionTile> AllOf(std::span<const AttentionTile> tiles,
                                 std::span<const AttentionTile> tiles_of_warpgroups) {
  std::vector<AttentionTile> all(tiles.begin(), tiles.end());
  if (HasWarpgroupProducts()) {
    all.insert(all.end(), tiles_of_warpgroups.begin(), tiles_of_warpgroups.end());
  }
  return all;
}
std::vector<AttentionTile> AllKeyTiles() {
  return AllOf(AttentionKeyTiles(), AttentionKeyTilesOfWarpgroups());
}
std::vector<AttentionTile> AllQueryTiles() {
  return AllOf(AttentionQueryTiles(), AttentionQueryTilesOfWarpgroups());
}

struct Case {
  AttentionShape shape;
  float deviation = 1.0F;
  std::vector<int32_t> documents = {};  // where the second and the further ones begin
};
// Compares every kernel for the head size; the chosen one, and those by warpgroups, in every order
// of threads.
class TiledAttention : public ::testing::TestWithParam<Case> {
 protected:
  // Checks the result of `run(gpu, tile)`.
  template <typename Run, typename Check>
  static void ForEachTile(std::span<const AttentionTile> tiles, Run run, Check check) {
    bool is_taken = true;
    for (const AttentionTile& tile : tiles) {
      if (tile.head_size != GetParam().shape.head_size) continue;
      const bool restricted = IsRestricted(GetParam().shape) || !GetParam().documents.empty();
      if (tile.stages > 0 && restricted) continue;
      SCOPED_TRACE(absl::StrCat("tile ", tile.rows, " by ", tile.step, ", ", tile.warps, " warps, ",
                                tile.stages, " stages"));
      const auto run_tile = [&](EmulatedGpu& gpu) { return run(gpu, tile); };
      if (std::exchange(is_taken, false) || tile.stages > 0) {
        check(InEveryOrder(run_tile));
      } else {
        EmulatedGpu gpu;
        check(run_tile(gpu));
      }
    }
  }
  // Compares the parts of dqkv that a kernel computes.
  void ExpectGradient(const std::vector<float2>& turns, std::span<const AttentionTile> tiles,
                      int64_t begin, int64_t end) const {
    const Vector dy = ToDouble(problem_.dy), qkv = ToDouble(problem_.qkv);
    Vector expected =
        reference::AttentionBackwardInput(problem_.shape, dy, qkv, problem_.documents);
    Vector bounds = BoundsOfAttentionGradient(problem_.shape, dy, qkv, problem_.exact, kType);
    if (!turns.empty()) {
      TurnBack(problem_, turns, false, expected);
      TurnBack(problem_, turns, true, bounds);
    }
    bounds = Stored(bounds, expected);
    // A kernel does not touch the other parts.
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto place = static_cast<int64_t>(i) % problem_.packed();
      if (place < begin || place >= end) expected[i] = bounds[i] = 0;
    }
    ForEachTile(
        tiles,
        [&](EmulatedGpu& gpu, const AttentionTile& tile) {
          const Tensor dqkv = gpu.Operand(kType, std::vector<float>(problem_.qkv.size()));
          AttentionArguments arguments = problem_.ArgumentsOfGradient(gpu, dqkv);
          arguments.turns = gpu.Upload<float2>(turns);
          EXPECT_TRUE(FitsAttentionTiles(ElementType::kBfloat16, arguments));
          EXPECT_EQ(tile.launch(gpu.stream(), arguments), cudaSuccess);
          return std::vector<Vector>{gpu.Values(dqkv)};
        },
        [&](const std::vector<Vector>& results) {
          EXPECT_THAT(results[0], CloseTo(expected, bounds));
        });
  }

  const Problem problem_{GetParam().shape, GetParam().deviation, GetParam().documents};
};

TEST_P(TiledAttention, ForwardMatchesReference) {
  const auto bounds =
      BoundsOfAttention(problem_.shape, ToDouble(problem_.qkv), problem_.exact, kType);
  const Vector y_bounds = Stored(bounds.y, problem_.exact.y);
  ForEachTile(
      AttentionForwardTiles(),
      [&](EmulatedGpu& gpu, const AttentionTile& tile) {
        AttentionArguments arguments = problem_.Arguments(gpu);
        const Tensor y = gpu.Result(kType, static_cast<int64_t>(problem_.exact.y.size()));
        const Tensor statistics =
            gpu.Result(DType::kFloat32, static_cast<int64_t>(problem_.statistics.size()));
        arguments.y = y.data;
        arguments.statistics = statistics.f32();
        EXPECT_TRUE(FitsAttentionTiles(ElementType::kBfloat16, arguments));
        EXPECT_EQ(tile.launch(gpu.stream(), arguments), cudaSuccess);
        return std::vector<Vector>{gpu.Values(statistics), gpu.Values(y)};
      },
      [&](const std::vector<Vector>& results) {
        EXPECT_THAT(results[0], CloseTo(problem_.exact.statistics, bounds.statistics));
        EXPECT_THAT(results[1], CloseTo(problem_.exact.y, y_bounds));
      });
}

TEST_P(TiledAttention, GradientsOfKeysAndValuesMatchReference) {
  ExpectGradient({}, AllKeyTiles(), problem_.first_key(), problem_.packed());
}

TEST_P(TiledAttention, GradientsOfQueriesMatchReference) {
  ExpectGradient({}, AllQueryTiles(), 0, problem_.first_key());
}

std::string NameOfCase(const ::testing::TestParamInfo<Case>& info) {
  const AttentionShape& shape = info.param.shape;
  return absl::StrCat(shape.samples, "x", shape.positions, "_", shape.heads, "of", shape.kv_heads,
                      "x", shape.head_size, shape.window > 0 ? "_window" : "",
                      shape.window > 0 ? absl::StrCat(shape.window) : "",
                      info.param.documents.empty() ? "" : "_documents",
                      shape.score_cap > 0.0F ? "_capped" : "");
}

AttentionShape With(AttentionShape shape, int64_t window, float score_cap = 0.0F) {
  shape.window = window;
  shape.score_cap = score_cap;
  return shape;
}

// Edges of tiles, groups of heads; and scores of more than a hundred, so that the largest weight so
// far is exceeded by far.
INSTANTIATE_TEST_SUITE_P(Shapes, TiledAttention,
                         ::testing::Values(Case{{1, 1, 1, 1, 64}}, Case{{2, 17, 3, 1, 64}},
                                           Case{{1, 64, 1, 1, 64}}, Case{{1, 127, 3, 1, 64}},
                                           Case{{1, 200, 1, 1, 64}, 6.0F}, Case{{1, 130, 1, 1, 80}},
                                           Case{{1, 70, 3, 1, 96}}, Case{{1, 1, 1, 1, 128}},
                                           Case{{1, 17, 3, 1, 128}}, Case{{1, 127, 1, 1, 128}},
                                           Case{{1, 200, 1, 1, 128}}, Case{{1, 260, 3, 1, 128}}),
                         NameOfCase);

// Windows that begin within tiles and at their edges; documents within a tile, of whole tiles, and
// of several; scores of which most are far beyond the cap.
INSTANTIATE_TEST_SUITE_P(
    Restricted, TiledAttention,
    ::testing::Values(Case{With({1, 150, 2, 1, 64}, 1)}, Case{With({1, 260, 1, 1, 64}, 64)},
                      Case{With({1, 200, 1, 1, 80}, 40)}, Case{With({1, 150, 2, 2, 128}, 65)},
                      Case{{2, 130, 3, 1, 64}, 1.0F, {64, 70, 71}},
                      Case{{1, 260, 1, 1, 64}, 1.0F, {128, 192, 200}},
                      Case{{1, 100, 1, 1, 96}, 1.0F, {99}}, Case{With({1, 70, 2, 1, 64}, 0, 2.0F)},
                      Case{With({1, 70, 1, 1, 128}, 0, 4.0F), 4.0F},
                      Case{With({1, 150, 2, 1, 128}, 50, 3.0F), 1.0F, {30, 120}}),
    NameOfCase);

// The gradients of queries and keys with rotary positions.
using TiledRotaryAttention = TiledAttention;

TEST_P(TiledRotaryAttention, GradientsAreTurnedBack) {
  const std::vector<float2> turns = Turns(problem_.shape);
  ExpectGradient(turns, AllKeyTiles(), problem_.first_key(), problem_.packed());
  ExpectGradient(turns, AllQueryTiles(), 0, problem_.first_key());
}

INSTANTIATE_TEST_SUITE_P(Shapes, TiledRotaryAttention,
                         ::testing::Values(Case{{2, 33, 2, 1, 64}}, Case{{1, 33, 1, 1, 80}},
                                           Case{{1, 33, 1, 1, 128}}),
                         NameOfCase);

TEST(TiledAttentionFits, WhatItsKernelsCanRead) {
  EmulatedGpu gpu;
  const AttentionArguments right = Problem({1, 1, 1, 1, 64}).Arguments(gpu);
  EXPECT_TRUE(FitsAttentionTiles(ElementType::kBfloat16, right));
  EXPECT_FALSE(FitsAttentionTiles(ElementType::kFloat32, right));
  AttentionArguments wrong = right;
  wrong.head_size = 72;
  EXPECT_FALSE(FitsAttentionTiles(ElementType::kBfloat16, wrong));
  wrong = right;
  wrong.k.stride = 196;
  EXPECT_FALSE(FitsAttentionTiles(ElementType::kBfloat16, wrong));
  wrong = right;
  wrong.dy = static_cast<const uint16_t*>(right.q.data) + 1;
  EXPECT_FALSE(FitsAttentionTiles(ElementType::kBfloat16, wrong));
}

TEST(TiledAttentionTiles, TheFirstFitEveryGpu) {
  for (const auto& tiles : {AttentionForwardTiles(), AttentionKeyTiles(), AttentionQueryTiles()}) {
    int head_size = 0;
    for (const AttentionTile& tile : tiles) {
      if (std::exchange(head_size, tile.head_size) == tile.head_size) continue;
      EXPECT_LE(tile.shared_bytes, 99U << 10) << tile.head_size;
    }
  }
}

TEST(TiledAttentionTiles, AreToldApartByTheirNumbers) {
  const std::vector<AttentionTile> forward = AllOf(AttentionForwardTiles(), {});
  for (const auto& tiles : {forward, AllKeyTiles(), AllQueryTiles()}) {
    std::set<std::array<int, 5>> numbers;
    for (const AttentionTile& tile : tiles) {
      EXPECT_TRUE(
          numbers.insert({tile.head_size, tile.rows, tile.step, tile.warps, tile.stages}).second)
          << tile.head_size;
    }
  }
}

// Blocks of more heads than are walked over at a time.
TEST(TiledAttentionTiles, CoverEveryHead) {
  const Problem problem({5, 65, 16, 8, 64});
  const Vector expected = reference::AttentionBackwardInput(
      problem.shape, ToDouble(problem.dy), ToDouble(problem.qkv), problem.documents);
  const Vector bounds =
      Stored(BoundsOfAttentionGradient(problem.shape, ToDouble(problem.dy), ToDouble(problem.qkv),
                                       problem.exact, kType),
             expected);
  for (const auto& [keys, queries] :
       {std::pair(AttentionKeyTiles(), AttentionQueryTiles()),
        std::pair(AttentionKeyTilesOfWarpgroups(), AttentionQueryTilesOfWarpgroups())}) {
    if (keys.empty() || (keys[0].stages > 0 && !HasWarpgroupProducts())) continue;
    EmulatedGpu gpu;
    const Tensor dqkv = gpu.Result(kType, static_cast<int64_t>(problem.qkv.size()));
    const AttentionArguments arguments = problem.ArgumentsOfGradient(gpu, dqkv);
    EXPECT_EQ(keys[0].launch(gpu.stream(), arguments), cudaSuccess);
    EXPECT_EQ(queries[0].launch(gpu.stream(), arguments), cudaSuccess);
    EXPECT_THAT(gpu.Values(dqkv), CloseTo(expected, bounds));
  }
}

// ---- The time of each on a GPU, to choose the default: run with --gtest_also_run_disabled_tests
// --gtest_filter=*Times*.

float MillisecondsOf(cudaStream_t stream, const AttentionTile& tile,
                     const AttentionArguments& arguments, int launches) {
  cudaEvent_t begin = nullptr, end = nullptr;
  EXPECT_EQ(cudaEventCreateWithFlags(&begin, cudaEventDefault), cudaSuccess);
  EXPECT_EQ(cudaEventCreateWithFlags(&end, cudaEventDefault), cudaSuccess);
  EXPECT_EQ(tile.launch(stream, arguments), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(begin, stream), cudaSuccess);
  for (int i = 0; i < launches; ++i) EXPECT_EQ(tile.launch(stream, arguments), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(end, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  float milliseconds = 0;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, begin, end), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(begin), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(end), cudaSuccess);
  return milliseconds / static_cast<float>(launches);
}

void PrintTimes(const AttentionShape& shape, int launches) {
  EmulatedGpu gpu;
  const int64_t rows = shape.samples * shape.positions, D = shape.head_size;
  const int64_t queries = shape.heads * D, packed = queries + 2 * shape.kv_heads * D;
  // A few numbers are repeated.
  const auto filled = [&](int64_t elements) {
    const std::vector<float> numbers = RandomNormal(std::min<int64_t>(elements, 1 << 20), 1);
    const Tensor some = gpu.Operand(kType, numbers), tensor = gpu.Result(kType, elements);
    for (int64_t at = 0; at < elements; at += some.elements()) {
      const int64_t count = std::min(some.elements(), elements - at);
      EXPECT_EQ(cudaMemcpyAsync(tensor.bf16() + at, some.data, static_cast<size_t>(2 * count),
                                cudaMemcpyDeviceToDevice, gpu.stream()),
                cudaSuccess);
    }
    return tensor.bf16();
  };
  uint16_t* const qkv = filled(rows * packed);
  uint16_t* const dqkv = gpu.Result(kType, rows * packed).bf16();
  AttentionArguments arguments = {.samples = shape.samples,
                                  .positions = shape.positions,
                                  .heads = shape.heads,
                                  .kv_heads = shape.kv_heads,
                                  .head_size = D,
                                  .factors = FactorsOf(DefaultScale(D), 0.0),
                                  .q = {qkv, packed},
                                  .k = {qkv + queries, packed},
                                  .v = {qkv + packed - shape.kv_heads * D, packed},
                                  .y = gpu.Result(kType, rows * queries).data,
                                  .dy = filled(rows * queries),
                                  .dq = {dqkv, packed},
                                  .dk = {dqkv + queries, packed},
                                  .dv = {dqkv + packed - shape.kv_heads * D, packed}};
  arguments.statistics = gpu.Result(DType::kFloat32, rows * shape.heads).f32();
  arguments.row_sums = gpu.Operand(DType::kFloat32, RandomNormal(rows * shape.heads, 2)).f32();
  const auto print = [&](const char* kernel, std::span<const AttentionTile> tiles) {
    for (const AttentionTile& tile : tiles) {
      if (tile.head_size != D) continue;
      std::printf("%s, %ld x %ld, heads %ld of %ld: tile %d by %d, %d warps, %d stages: %.4f ms\n",
                  kernel, shape.samples, shape.positions, shape.heads, D, tile.rows, tile.step,
                  tile.warps, tile.stages, MillisecondsOf(gpu.stream(), tile, arguments, launches));
    }
  };
  print("forward", AttentionForwardTiles());
  print("dk, dv", AllKeyTiles());
  print("dq", AllQueryTiles());
}

TEST(TiledAttentionTimes, DISABLED_OfEachTile) {
  if (testing::cuda::IsSimulated()) {
    PrintTimes({1, 65, 1, 1, 64}, 1);
    PrintTimes({1, 65, 1, 1, 128}, 1);
    return;
  }
  for (const AttentionShape& shape :
       {AttentionShape{16, 1024, 12, 12, 64}, AttentionShape{64, 1024, 12, 12, 64},
        AttentionShape{8, 2048, 32, 4, 64}, AttentionShape{4, 4096, 32, 32, 128},
        AttentionShape{4, 2048, 32, 8, 128}, AttentionShape{4, 2048, 32, 32, 80},
        AttentionShape{4, 2048, 32, 32, 96}}) {
    PrintTimes(shape, 10);
  }
}

}  // namespace
}  // namespace stagecoach::kernels::attention_tiled_test
