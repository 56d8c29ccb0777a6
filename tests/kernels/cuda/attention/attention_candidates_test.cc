#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "kernels/ops/attention.h"
#include "tests/kernels/cuda/emulated_gpu.h"
#include "tests/kernels/ops/attention_bounds.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/close_to.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/reference.h"
#include "tests/testing/test_folder.h"

// Attention by each of its kernels, selected by a tuning file: the measured ones, and all others.
namespace stagecoach::kernels::attention_candidates_test {
namespace {

using reference::Vector;
using ::stagecoach::testing::Addresses;
using ::stagecoach::testing::CheckAvailable;
using ::stagecoach::testing::CloseTo;
using ::stagecoach::testing::HasWarpgroupProducts;
using ::stagecoach::testing::OpBackend;
using ::stagecoach::testing::OpBackends;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpResults;
using ::stagecoach::testing::OpVariant;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::ResultsOn;
using ::stagecoach::testing::RoundedTo;
using ::stagecoach::testing::StoredBounds;
using ::stagecoach::testing::ToDouble;
using ::testing::Contains;
using ::testing::SizeIs;

// A choice as Device::choices reports it: "STEP bf16 SHAPE, on MODEL: WAY".
struct Told {
  explicit Told(absl::string_view text) {
    const size_t on = text.find(", on "), colon = text.rfind(": ");
    work = std::string(text.substr(0, on));
    model = std::string(text.substr(on + 5, colon - on - 5));
    way = std::string(text.substr(colon + 2));
  }
  std::string work, model, way;
};

// Returns a choice as in a tuning file.
nlohmann::json InFile(int rows, int step, int warps) {
  return {{"rows", rows}, {"step", step}, {"warps", warps}};
}

// The version of cuDNN whose engines this test knows.
constexpr int kCudnn = 91900;
nlohmann::json OfCudnn(int engine, int knob) {
  return {{"cudnn", kCudnn}, {"engine", engine}, {"knob24", knob}};
}

std::string TextOf(const nlohmann::json& way) {
  std::string text;
  for (const auto& [name, number] : way.items()) {
    absl::StrAppend(&text, text.empty() ? "" : ", ", name, " ", number.get<int>());
  }
  return text;
}

struct Candidates {
  std::string step;
  std::vector<nlohmann::json> ways;
};
// Returns our kernels, for heads of 64 numbers. A kernel that a build lacks is replaced by
// measuring, so that the report differs.
std::vector<Candidates> OurCandidates() {
  return {{"attention forward",
           {InFile(128, 64, 4), InFile(64, 64, 4), InFile(256, 64, 8), InFile(128, 128, 4)}},
          {"attention dk dv", {InFile(128, 32, 4), InFile(64, 64, 4), InFile(128, 64, 8)}},
          {"attention dq", {InFile(128, 64, 4), InFile(64, 64, 4), InFile(128, 32, 4)}}};
}
// Returns those by warpgroups, which GPUs of compute capability 9.0 have, for shapes without
// restrictions.
std::vector<Candidates> OurCandidatesOfWarpgroups() {
  const auto in_file = [](int rows, int step, int warps, int stages) {
    nlohmann::json way = InFile(rows, step, warps);
    way["stages"] = stages;
    return way;
  };
  return {
      {"attention dk dv", {in_file(64, 64, 4, 3), in_file(64, 64, 4, 2), in_file(128, 128, 8, 2)}},
      {"attention dq", {in_file(128, 64, 8, 2), in_file(128, 128, 8, 3), in_file(64, 64, 4, 3)}}};
}
// Returns cuDNN's engines, for all shapes.
std::vector<Candidates> CudnnCandidates() {
  return {{"attention forward", {OfCudnn(2, 7), OfCudnn(1, 3)}},
          {"attention backward", {OfCudnn(6, 26), OfCudnn(7, 26), {{"tiles", 1}}}}};
}

// Returns the numbers of large tensors: they repeat, but not at the same places of samples and
// heads.
std::vector<float> ManyNumbers(int64_t count, uint64_t seed) {
  constexpr int64_t kPeriod = 1000003;
  std::vector<float> numbers = RandomNormal(std::min(count, kPeriod), seed);
  numbers.reserve(static_cast<size_t>(count));
  while (std::ssize(numbers) < count) {
    numbers.push_back(numbers[numbers.size() - static_cast<size_t>(kPeriod)]);
  }
  return numbers;
}

// Returns documents of these lengths, which are repeated up to the last position.
std::vector<int32_t> DocumentsOf(const AttentionShape& shape, const std::vector<int>& lengths) {
  std::vector<int32_t> documents;
  size_t next = 0;
  int32_t first = 0;
  for (int64_t t = 0; t < shape.samples * shape.positions; ++t) {
    const auto at = static_cast<int32_t>(t % shape.positions);
    if (at == 0) first = 0;
    if (at - first == lengths[next % lengths.size()]) {
      first = at;
      ++next;
    }
    documents.push_back(first);
  }
  return documents;
}

// Compares relative to the largest number. Bounds that hold for each number are wide where scores
// have rounded operands: an operand rotated twice, for example, is within them.
void ExpectAlike(const Vector& values, const Vector& expected) {
  double largest = 0, farthest = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    largest = std::max(largest, std::fabs(expected[i]));
    // NaN is far from everything.
    const double distance = std::fabs(values[i] - expected[i]);
    if (!(distance <= farthest)) farthest = distance;
  }
  EXPECT_LE(farthest, std::ldexp(largest, -6));
}

class AttentionCandidates : public ::testing::Test {
 protected:
  void SetUp() override {
    OpBackend backend = OpBackends().back();
    STAGECOACH_CHECK(backend.type() == kType, "the last backend is that of bfloat16");
    if (const absl::Status status = CheckAvailable(backend); !status.ok()) {
      GTEST_SKIP() << status.message();
    }
    variant_.name = "with a tuning file";
    variant_.create_device = [this] {
      testing::cuda::Reset({.gpus = 1, .delay = 0.0});
      const absl::StatusOr<CudaBackend*> cuda = CudaBackend::Load();
      STAGECOACH_CHECK_OK(cuda);
      auto device =
          (*cuda)->CreateDevice({.precision = Precision::kBfloat16, .tuning_file = file_});
      STAGECOACH_CHECK_OK(device);
      return *std::move(device);
    };
  }

  // Returns what a device reports of attention.
  static std::vector<Told> ToldBy(const Device& device) {
    std::vector<Told> told;
    for (const std::string& text : device.choices()) {
      if (absl::StartsWith(text, "attention ")) told.emplace_back(text);
    }
    return told;
  }
  void Write(const nlohmann::json& choices) const {
    std::ofstream(file_) << nlohmann::json(
        {{"format", "stagecoach-tuning"}, {"version", 2}, {"choices", choices}});
  }
  // Returns what a new device then reports of it.
  std::vector<Told> ExpectMatchesReference(const AttentionShape& shape) const;
  // Does so with each of the choices, which a tuning file names.
  void ExpectEachMatchesReference(const AttentionShape& shape,
                                  const std::vector<Candidates>& all) const;
  // Returns dqkv if y and the statistics are the device's own.
  Vector GradientOf(const AttentionShape& shape) const;
  // Returns the milliseconds of a call forward and backward, including what the host adds to
  // `calls` in a row.
  std::pair<double, double> TimesOf(const AttentionShape& shape, int calls) const;
  // Returns true if the measured file has what was compared with this cuDNN.
  bool HasCudnn() const {
    const std::string text = nlohmann::json::parse(std::ifstream(file_)).dump();
    return absl::StrContains(text, "cuDNN 9.19.0, ");
  }

  static constexpr DType kType = DType::kBfloat16;
  const AttentionShape shape_ = {.positions = 70, .heads = 2, .kv_heads = 1, .head_size = 64};

 private:
  const testing::TestFolder folder_;

 protected:
  const std::string file_ = (folder_.path() / "tuning.json").string();
  OpVariant variant_;
};

std::vector<Told> AttentionCandidates::ExpectMatchesReference(const AttentionShape& shape) const {
  const int64_t B = shape.samples, T = shape.positions, D = shape.head_size;
  const Shape packed = {B, T, (shape.heads + 2 * shape.kv_heads) * D};
  const Shape outputs = {B, T, shape.heads * D}, heads = {B, shape.heads, T};
  const std::vector<float> qkv = RoundedTo(kType, RandomNormal(packed.elements(), 1));
  const std::vector<float> dy = RoundedTo(kType, RandomNormal(outputs.elements(), 2));
  const std::vector<int32_t> documents =
      shape.has_documents ? DocumentsOf(shape, {70, 1, 20, 43}) : std::vector<int32_t>();
  const reference::AttentionOutput exact =
      reference::AttentionForward(shape, ToDouble(qkv), documents);
  // Backward is tested on its own operands.
  const std::vector<float> exact_y(exact.y.begin(), exact.y.end());
  const std::vector<float> exact_statistics(exact.statistics.begin(), exact.statistics.end());

  std::vector<Told> told;
  const OpResults results = ResultsOn(
      {.precision = Precision::kBfloat16, .variants = {variant_}}, Addresses::kAligned,
      [&](OpBench& bench) {
        AttentionOp& op = bench.Create(shape);
        told = ToldBy(bench.device());
        const Tensor on_gpu = bench.Operand(packed, qkv),
                     statistics = bench.ResultOf(DType::kFloat32, heads);
        const Tensor y = bench.Result(outputs), dqkv = bench.Result(packed);
        const Tensor y_before = bench.Operand(outputs, exact_y);
        const Tensor statistics_before = bench.Floats(heads, exact_statistics);
        const Tensor dy_on_gpu = bench.Operand(outputs, dy);
        const Tensor documents_on_gpu =
            documents.empty() ? Tensor() : bench.Integers({B, T}, documents);
        std::byte* const workspace = bench.Workspace(op.workspace_bytes());
        bench.Run([&](Stream& stream) -> absl::Status {
          RETURN_IF_ERROR(op.Forward(stream, on_gpu, documents_on_gpu, statistics, y, workspace));
          return op.BackwardInput(stream, dy_on_gpu, on_gpu, documents_on_gpu, y_before,
                                  statistics_before, dqkv, workspace);
        });
        return std::vector<Tensor>{statistics, y, dqkv};
      });
  SCOPED_TRACE(told.empty() ? "" : told.front().way);
  const auto bounds = BoundsOfAttention(shape, ToDouble(qkv), exact, kType);
  EXPECT_THAT(results[0], CloseTo(exact.statistics, bounds.statistics));
  EXPECT_THAT(results[1], CloseTo(exact.y, StoredBounds(exact.y, bounds.y, kType)));
  const Vector gradient =
      reference::AttentionBackwardInput(shape, ToDouble(dy), ToDouble(qkv), documents);
  EXPECT_THAT(results[2],
              CloseTo(gradient, StoredBounds(gradient,
                                             BoundsOfAttentionGradient(shape, ToDouble(dy),
                                                                       ToDouble(qkv), exact, kType),
                                             kType)));
  ExpectAlike(results[1], exact.y);
  ExpectAlike(results[2], gradient);
  return told;
}

Vector AttentionCandidates::GradientOf(const AttentionShape& shape) const {
  const int64_t B = shape.samples, T = shape.positions, D = shape.head_size;
  const Shape packed = {B, T, (shape.heads + 2 * shape.kv_heads) * D};
  const Shape outputs = {B, T, shape.heads * D}, heads = {B, shape.heads, T};
  const std::vector<float> qkv = ManyNumbers(packed.elements(), 1);
  const std::vector<float> dy = ManyNumbers(outputs.elements(), 2);
  return ResultsOn({.precision = Precision::kBfloat16, .variants = {variant_}}, Addresses::kAligned,
                   [&](OpBench& bench) {
                     AttentionOp& op = bench.Create(shape);
                     const Tensor x = bench.Operand(packed, qkv), dx = bench.Operand(outputs, dy);
                     const Tensor statistics = bench.ResultOf(DType::kFloat32, heads);
                     const Tensor y = bench.Result(outputs), dqkv = bench.Result(packed);
                     std::byte* const workspace = bench.Workspace(op.workspace_bytes());
                     bench.Run([&](Stream& stream) -> absl::Status {
                       RETURN_IF_ERROR(op.Forward(stream, x, {}, statistics, y, workspace));
                       return op.BackwardInput(stream, dx, x, {}, y, statistics, dqkv, workspace);
                     });
                     return std::vector<Tensor>{dqkv};
                   })[0];
}

std::pair<double, double> AttentionCandidates::TimesOf(const AttentionShape& shape,
                                                       int calls) const {
  const int64_t B = shape.samples, T = shape.positions, D = shape.head_size;
  const Shape packed = {B, T, (shape.heads + 2 * shape.kv_heads) * D};
  const Shape outputs = {B, T, shape.heads * D}, heads = {B, shape.heads, T};
  OpBench bench(variant_);
  AttentionOp& op = bench.Create(shape);
  const Tensor x = bench.Operand(packed, ManyNumbers(packed.elements(), 1));
  const Tensor dy = bench.Operand(outputs, ManyNumbers(outputs.elements(), 2));
  const Tensor statistics = bench.ResultOf(DType::kFloat32, heads);
  const Tensor y = bench.Result(outputs), dx = bench.Result(packed);
  std::byte* const workspace = bench.Workspace(op.workspace_bytes());
  const auto time = [&](auto call) {
    bench.Run(call);
    const auto begin = std::chrono::steady_clock::now();
    bench.Run([&](Stream& stream) -> absl::Status {
      for (int i = 0; i < calls; ++i) RETURN_IF_ERROR(call(stream));
      return absl::OkStatus();
    });
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - begin;
    return taken.count() / std::max(calls, 1);
  };
  const double forward =
      time([&](Stream& stream) { return op.Forward(stream, x, {}, statistics, y, workspace); });
  const double backward = time([&](Stream& stream) {
    return op.BackwardInput(stream, dy, x, {}, y, statistics, dx, workspace);
  });
  return {forward, backward};
}

void AttentionCandidates::ExpectEachMatchesReference(const AttentionShape& shape,
                                                     const std::vector<Candidates>& all) const {
  nlohmann::json choices = nlohmann::json::parse(std::ifstream(file_))["choices"];
  for (const Candidates& candidates : all) {
    const std::string work = absl::StrCat(
        candidates.step, " bf16 ", shape.samples, "x", shape.positions, ", ", shape.heads, " of ",
        shape.kv_heads, " heads x ", shape.head_size, shape.rotary_base > 0.0F ? ", rotary" : "",
        shape.window > 0 ? absl::StrCat(", window ", shape.window) : "",
        shape.has_documents ? ", documents" : "", shape.score_cap > 0.0F ? ", capped" : "");
    for (const nlohmann::json& way : candidates.ways) {
      SCOPED_TRACE(absl::StrCat(work, ": ", way.dump()));
      for (const auto& [key, choice] : choices.items()) {
        if (absl::EndsWith(key, work)) choices[key] = way;
      }
      Write(choices);
      std::vector<std::string> told;
      for (const Told& each : ExpectMatchesReference(shape)) {
        told.push_back(each.work + ": " + each.way);
      }
      EXPECT_THAT(told, Contains(absl::StrCat(work, ": ", TextOf(way))));
    }
  }
}

TEST_F(AttentionCandidates, EachOfOursMatchesReference) {
  ASSERT_THAT(ExpectMatchesReference(shape_), SizeIs(4));
  ExpectEachMatchesReference(shape_, OurCandidates());
}

TEST_F(AttentionCandidates, EachOfOursByWarpgroupsMatchesReference) {
  if (!HasWarpgroupProducts()) GTEST_SKIP() << "the GPU has no products of warpgroups";
  AttentionShape turned = shape_;
  turned.positions = 200;
  turned.rotary_base = 10000.0F;
  for (const AttentionShape& shape : {shape_, turned}) {
    ExpectMatchesReference(shape);
    ExpectEachMatchesReference(shape, OurCandidatesOfWarpgroups());
  }
}

// Windows and documents that begin and end within tiles, and scores of which many reach the cap.
// cuDNN is not among the candidates.
TEST_F(AttentionCandidates, EachOfOursMatchesReferenceWhereItIsRestricted) {
  AttentionShape in_documents = shape_;
  in_documents.positions = 150;
  in_documents.has_documents = true;
  AttentionShape capped = shape_;
  capped.score_cap = 2.0F;
  AttentionShape all = in_documents;
  all.samples = 2;
  all.rotary_base = 10000.0F;
  all.window = 50;
  all.scale = 0.25F;
  all.score_cap = 4.0F;
  for (const AttentionShape& shape : {in_documents, capped, all}) {
    ASSERT_THAT(ExpectMatchesReference(shape), SizeIs(3));
    ExpectEachMatchesReference(shape, OurCandidates());
  }
}

// Heads with their own keys, in groups, and rotated ones, whose gradients are rotated back; all
// head sizes, and positions that fill no tile.
TEST_F(AttentionCandidates, EachOfCudnnMatchesReference) {
  const AttentionShape shapes[] = {
      {.positions = 129, .heads = 4, .kv_heads = 2, .head_size = 64},
      {.positions = 70, .heads = 2, .head_size = 80, .rotary_base = 10000.0F},
      {.positions = 65, .head_size = 96},
      {.samples = 2, .positions = 64, .head_size = 128, .rotary_base = 500.0F},
      {.positions = 70, .head_size = 64, .scale = 0.25F}};
  for (const AttentionShape& shape : shapes) {
    ExpectMatchesReference(shape);
    if (!HasCudnn()) {
      EXPECT_FALSE(testing::cuda::IsSimulated());
      GTEST_SKIP() << "there is no cuDNN 9.19.0";
    }
    ExpectEachMatchesReference(shape, CudnnCandidates());
  }
}

// cuDNN's backward runs over samples, and over heads, one part after the other.
TEST_F(AttentionCandidates, CudnnInPartsAgreesWithOurs) {
  if (testing::cuda::IsSimulated()) GTEST_SKIP() << "for GPUs: it is too much for an emulated one";
  const AttentionShape shapes[] = {
      {.samples = 2, .positions = 4096, .heads = 12, .kv_heads = 12, .head_size = 64},
      {.positions = 4096, .heads = 32, .kv_heads = 4, .head_size = 64, .rotary_base = 10000.0F}};
  for (const AttentionShape& shape : shapes) {
    GradientOf(shape);  // measures
    if (!HasCudnn()) GTEST_SKIP() << "there is no cuDNN 9.19.0";
    std::vector<Vector> gradients;
    nlohmann::json choices = nlohmann::json::parse(std::ifstream(file_))["choices"];
    for (const nlohmann::json& way : {nlohmann::json{{"tiles", 1}}, OfCudnn(6, 26)}) {
      for (const auto& [key, choice] : choices.items()) {
        if (absl::StrContains(key, "attention backward")) choices[key] = way;
      }
      Write(choices);
      gradients.push_back(GradientOf(shape));
    }
    ExpectAlike(gradients[1], gradients[0]);
  }
}

// Prints the time of each of cuDNN's engines and of all our backward kernels on a GPU, as the
// operation runs them. --gtest_also_run_disabled_tests --gtest_filter=*Times*.
TEST_F(AttentionCandidates, DISABLED_TimesOfCudnn) {
  const bool simulated = testing::cuda::IsSimulated();
  const std::vector<AttentionShape> shapes =
      simulated ? std::vector<AttentionShape>{{1, 65, 1, 1, 64}}
                : std::vector<AttentionShape>{{16, 1024, 12, 12, 64}, {4, 2048, 32, 8, 128}};
  for (const AttentionShape& shape : shapes) {
    TimesOf(shape, /*calls=*/0);  // measures
    nlohmann::json choices = nlohmann::json::parse(std::ifstream(file_))["choices"];
    for (const Candidates& candidates : CudnnCandidates()) {
      const bool forward = candidates.step == "attention forward";
      for (const nlohmann::json& way : candidates.ways) {
        if (!HasCudnn()) GTEST_SKIP() << "there is no cuDNN 9.19.0";
        for (const auto& [key, choice] : choices.items()) {
          if (absl::StrContains(key, candidates.step)) choices[key] = way;
        }
        Write(choices);
        const auto times = TimesOf(shape, simulated ? 1 : 20);
        std::printf("%s, %ld x %ld, heads %ld of %ld: by %s: %.4f ms\n",
                    forward ? "forward" : "backward", shape.samples, shape.positions, shape.heads,
                    shape.head_size, TextOf(way).c_str(), forward ? times.first : times.second);
      }
    }
  }
}

}  // namespace
}  // namespace stagecoach::kernels::attention_candidates_test
