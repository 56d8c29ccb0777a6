#include "kernels/cuda/ops/attention/attention_cudnn.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/cudnn/graph.h"
#include "kernels/cuda/runtime/handles.h"
#include "kernels/cuda/tuning/measure.h"
#include "kernels/ops/attention.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/cuda/blas_lt_fixture.h"
#include "tests/testing/cuda/cudnn/faults.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

// The use of cuDNN for attention. attention_candidates_test.cc tests what it computes.
namespace stagecoach::kernels::attention_cudnn_test {
namespace {

using ::stagecoach::testing::cuda::CallsByName;
using ::stagecoach::testing::cuda::SetCudnnFaults;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr AttentionShape kShape = {.positions = 64, .heads = 2, .head_size = 64};
// An hour of the GPU's clock: more than anything takes.
constexpr int64_t kHour = 3600000000000;

class CudnnAttentionTest : public BlasLtTest {
 protected:
  std::unique_ptr<Device> CreateDevice(int gpu = 0) const {
    auto device = Backend().CreateDevice(
        {.gpu = gpu, .precision = Precision::kBfloat16, .tuning_file = tuning_file()});
    STAGECOACH_CHECK_OK(device);
    return *std::move(device);
  }
  // Returns what a new device reports of attention once it has the operation.
  std::vector<std::string> Choices(int gpu = 0) const {
    const auto device = CreateDevice(gpu);
    STAGECOACH_CHECK_OK(device->ops().Create(kShape));
    std::vector<std::string> attention;
    for (std::string& text : device->choices()) {
      if (absl::StartsWith(text, "attention ")) attention.push_back(std::move(text));
    }
    return attention;
  }
  static std::string Told(const std::string& step, const std::string& way) {
    return absl::StrCat(
        "attention ", step,
        " bf16 1x64, 2 of 1 heads x 64, on CUDA stand-in, 4 multiprocessors: ", way);
  }
  static std::string OfCudnn(int engine, int knob) {
    return absl::StrCat("cudnn 91900, engine ", engine, ", knob24 ", knob);
  }
};

TEST_F(CudnnAttentionTest, IsTakenWhereItIsFastest) {
  SetCudnnFaults({.extra_ns = {{2, -kHour}, {6, -kHour}}});
  const std::vector<std::string> choices = Choices();
  EXPECT_THAT(choices, SizeIs(4));
  EXPECT_THAT(choices, Contains(Told("forward", OfCudnn(2, 7))));
  EXPECT_THAT(choices, Contains(Told("backward", OfCudnn(6, 26))));
  // Another device makes the same choice without measuring.
  SetCudnnFaults({.extra_ns = {{2, kHour}, {6, kHour}}});
  EXPECT_EQ(Choices(/*gpu=*/1), choices);
}

TEST_F(CudnnAttentionTest, IsNotTakenWhereOursIsFaster) {
  SetCudnnFaults({.extra_ns = {{1, kHour}, {2, kHour}, {6, kHour}, {7, kHour}}});
  const std::vector<std::string> choices = Choices();
  EXPECT_THAT(choices, Contains(Told("backward", "tiles 1")));
  EXPECT_THAT(choices, Not(Contains(HasSubstr("cudnn"))));
}

TEST_F(CudnnAttentionTest, WaysThatDoNotWorkArePassedOver) {
  const std::map<int64_t, int64_t> extra_ns = {
      {2, -2 * kHour}, {1, -kHour}, {6, -2 * kHour}, {7, -kHour}};
  SetCudnnFaults({.extra_ns = extra_ns});
  ASSERT_THAT(Choices(), Contains(Told("forward", OfCudnn(2, 7))));
  const nlohmann::json file = ReadTuning();
  for (const testing::cuda::CudnnFaults& faults :
       {testing::cuda::CudnnFaults{.uncompiled = {2, 6}, .extra_ns = extra_ns},
        testing::cuda::CudnnFaults{.failing = {2, 6}, .extra_ns = extra_ns},
        testing::cuda::CudnnFaults{.greedy = {2, 6}, .extra_ns = extra_ns}}) {
    // A choice in the file that does not run is measured again.
    WriteTuning(file);
    SetCudnnFaults(faults);
    const std::vector<std::string> choices = Choices();
    EXPECT_THAT(choices, Contains(Told("forward", OfCudnn(1, 3))));
    EXPECT_THAT(choices, Contains(Told("backward", OfCudnn(7, 26))));
  }
}

TEST_F(CudnnAttentionTest, WhatWasMeasuredIsOfItsVersion) {
  const testing::cuda::CudnnFaults quick = {.extra_ns = {{2, -kHour}, {6, -kHour}}};
  SetCudnnFaults(quick);
  const std::vector<std::string> with = Choices();
  StartMachine({.gpus = 1, .cudnn_version = 92000});
  SetCudnnFaults(quick);
  EXPECT_THAT(Choices(), Contains(HasSubstr("cudnn 92000, ")));
  for (const int64_t too_old : {0, 91801}) {
    StartMachine({.gpus = 1, .cudnn_version = too_old});
    const std::vector<std::string> choices = Choices();
    EXPECT_THAT(choices, Not(Contains(HasSubstr("cudnn"))));
    // Ranks that have cuDNN can then detect that they differ.
    EXPECT_THAT(choices, Contains(Told("backward", "tiles 1")));
  }
  // Forward and backward of two versions, and those of our kernels alone.
  EXPECT_THAT(ReadTuning()["choices"], SizeIs(2 + 2 + 3));
  StartMachine({.gpus = 1});
  EXPECT_EQ(Choices(), with);
}

TEST_F(CudnnAttentionTest, AShapeIsPlannedOnce) {
  SetCudnnFaults({.extra_ns = {{2, -kHour}, {6, -kHour}}});
  Choices();
  const auto device = CreateDevice();
  const auto calls_of = [&](const char* name) {
    const int64_t before = CallsByName()[name];
    STAGECOACH_CHECK_OK(device->ops().Create(kShape));
    return CallsByName()[name] - before;
  };
  // It has run before anything is recorded, even though the file selects it.
  EXPECT_GE(calls_of("cudnnBackendExecute"), 2);
  EXPECT_EQ(calls_of("cudnnBackendFinalize"), 0);
  EXPECT_EQ(calls_of("cudnnBackendExecute"), 0);
}

TEST_F(CudnnAttentionTest, ScratchIsThatOfTheShape) {
  std::set<int64_t> bytes;
  for (const int64_t version : {0, 91900}) {
    for (const std::string& file : {std::string(), tuning_file()}) {
      StartMachine({.gpus = 1, .cudnn_version = version});
      auto device =
          Backend().CreateDevice({.precision = Precision::kBfloat16, .tuning_file = file});
      ASSERT_OK(device);
      ASSERT_OK_AND_ASSIGN(const std::unique_ptr<AttentionOp> op, (*device)->ops().Create(kShape));
      bytes.insert(op->workspace_bytes());
    }
  }
  EXPECT_THAT(bytes, SizeIs(1));
}

// ---- Parts.

TEST(CudnnParts, FillAGpuAndFit) {
  struct Case {
    AttentionShape shape;
    int64_t samples, kv_heads;  // per part
  };
  const Case cases[] = {{{64, 1024, 12, 12, 64}, 16, 12},  // GPT-2
                        {{63, 1024, 12, 12, 64}, 9, 12},   // four parts would share a sample
                        {{8, 2048, 32, 4, 64}, 2, 4},
                        {{1, 4096, 32, 32, 128}, 1, 16},
                        {{1, 8192, 4, 1, 128}, 1, 1},
                        {{1, 8192, 8, 1, 128}, 0, 0},  // one group is too large
                        {{1, 1001, 2, 1, 64}, 1, 1},
                        {{64, 1001, 12, 12, 64}, 0, 0},  // parts would not be aligned
                        {{1, 1 << 24, 1, 1, 64}, 0, 0}};
  for (const Case& each : cases) {
    const CudnnParts parts = PartsForCudnn(each.shape, kCudnnScratchBytes);
    SCOPED_TRACE(absl::StrCat(each.shape.samples, "x", each.shape.positions));
    EXPECT_EQ(parts.samples, each.samples);
    EXPECT_EQ(parts.kv_heads, each.kv_heads);
    EXPECT_GT(parts.scratch_bytes, 0);
    EXPECT_LE(parts.scratch_bytes, kCudnnScratchBytes);
  }
  EXPECT_EQ(PartsForCudnn({1, 63, 1, 1, 64}, kCudnnScratchBytes).scratch_bytes, 0);
  EXPECT_EQ(PartsForCudnn({1, 64, 1, 1, 72}, kCudnnScratchBytes).scratch_bytes, 0);
}

// Its graphs have no mask but the causal one, and no tanh.
TEST(CudnnParts, AreNoneOfShapesThatCudnnDoesNotKnow) {
  const auto bytes = [](auto change) {
    AttentionShape shape = kShape;
    change(shape);
    return PartsForCudnn(shape, kCudnnScratchBytes).scratch_bytes;
  };
  EXPECT_EQ(bytes([](AttentionShape& shape) { shape.window = 63; }), 0);
  EXPECT_EQ(bytes([](AttentionShape& shape) { shape.has_documents = true; }), 0);
  EXPECT_EQ(bytes([](AttentionShape& shape) { shape.score_cap = 50.0F; }), 0);
  EXPECT_GT(bytes([](AttentionShape& shape) { shape.window = 64; }), 0);
  EXPECT_GT(bytes([](AttentionShape& shape) { shape.scale = 1.0F; }), 0);
}

// Operands and results of one shape, in the memory of GPU 0.
class Memory {
 public:
  explicit Memory(const AttentionShape& shape) : shape_(shape) {
    Layout sizes(nullptr);
    Arrange(sizes);
    absl::StatusOr<TuningBench> bench = TuningBench::Create(0, sizes.used_bytes());
    STAGECOACH_CHECK_OK(bench);
    bench_ = std::make_unique<TuningBench>(*std::move(bench));
    Layout layout(bench_->memory());
    Arrange(layout);
    const int64_t heads = shape.samples * shape.positions * shape.head_size;
    STAGECOACH_CHECK_OK(bench_->FillUniform(qkv_, heads * (shape.heads + 2 * shape.kv_heads),
                                            ElementType::kBfloat16, 1));
    STAGECOACH_CHECK_OK(bench_->FillUniform(dy_, heads * shape.heads, ElementType::kBfloat16, 2));
  }

  // Returns dqkv.
  std::vector<std::byte> Run(CudnnAttention& attention, int64_t scratch_bytes) {
    const int64_t D = shape_.head_size, H = shape_.heads, G = shape_.kv_heads;
    const auto heads = [&](std::byte* packed, int64_t first) {
      return HeadsOf<void*>{packed + first * D * 2, (H + 2 * G) * D};
    };
    const auto read = [&](int64_t first) {
      return HeadsOf<const void*>{heads(qkv_, first).data, (H + 2 * G) * D};
    };
    const AttentionArguments arguments = {.samples = shape_.samples,
                                          .positions = shape_.positions,
                                          .heads = H,
                                          .kv_heads = G,
                                          .head_size = D,
                                          .factors = FactorsOf(DefaultScale(D), 0.0),
                                          .q = read(0),
                                          .k = read(H),
                                          .v = read(H + G),
                                          .y = y_,
                                          .statistics = statistics_,
                                          .dy = dy_,
                                          .dq = heads(dqkv_, 0),
                                          .dk = heads(dqkv_, H),
                                          .dv = heads(dqkv_, H + G)};
    // Separate memory, so that a scratch area that is too small is detected.
    const absl::StatusOr<DeviceMemory> scratch = DeviceMemory::Allocate(0, scratch_bytes);
    STAGECOACH_CHECK_OK(scratch);
    cudaStream_t const stream = bench_->stream();
    for (const auto pass : {CudnnAttention::Pass::kForward, CudnnAttention::Pass::kBackward}) {
      STAGECOACH_CHECK_OK(attention.Launch(stream, pass, 0, arguments, row_sums_, scratch->data()));
    }
    std::vector<std::byte> gradient(static_cast<size_t>(dqkv_bytes_));
    const absl::StatusOr<PinnedMemory> host = PinnedMemory::Allocate(0, dqkv_bytes_);
    STAGECOACH_CHECK_OK(host);
    STAGECOACH_CHECK(cudaMemcpyAsync(host->data(), dqkv_, gradient.size(), cudaMemcpyDeviceToHost,
                                     stream) == cudaSuccess &&
                         cudaStreamSynchronize(stream) == cudaSuccess,
                     "a copy to the host");
    std::copy_n(host->data(), gradient.size(), gradient.begin());
    return gradient;
  }

 private:
  void Arrange(Layout& layout) {
    const int64_t heads = shape_.samples * shape_.positions * shape_.head_size * 2;
    const int64_t rows = shape_.samples * shape_.positions * shape_.heads * 4;
    dqkv_bytes_ = heads * (shape_.heads + 2 * shape_.kv_heads);
    qkv_ = layout.Take(dqkv_bytes_);
    dqkv_ = layout.Take(dqkv_bytes_);
    y_ = layout.Take(heads * shape_.heads);
    dy_ = layout.Take(heads * shape_.heads);
    statistics_ = reinterpret_cast<float*>(layout.Take(rows));
    row_sums_ = reinterpret_cast<float*>(layout.Take(rows));
  }

  const AttentionShape shape_;
  std::unique_ptr<TuningBench> bench_;
  std::byte *qkv_ = nullptr, *dqkv_ = nullptr, *y_ = nullptr, *dy_ = nullptr;
  float *statistics_ = nullptr, *row_sums_ = nullptr;
  int64_t dqkv_bytes_ = 0;
};

TEST_F(CudnnAttentionTest, PartsTogetherAreTheWhole) {
  const GpuScope scope(0);
  ASSERT_OK_AND_ASSIGN(const std::shared_ptr<const cudnn::GpuHandle> handle,
                       cudnn::GpuHandle::Create(0));
  const AttentionShape shape = {
      .samples = 5, .positions = 68, .heads = 10, .kv_heads = 5, .head_size = 64};
  Memory memory(shape);
  std::vector<std::byte> whole;
  // All at once; three samples, then one of them again; three kv heads likewise; each by itself.
  const std::pair<int64_t, int64_t> expected[] = {{5, 5}, {3, 5}, {1, 3}, {1, 1}};
  const int64_t of_group = 2 * 2 * (128 * 128 + 2 * 68 * 64), around = 4096 + 256;
  for (const auto& [samples, kv_heads] : expected) {
    const int64_t most = samples * kv_heads * of_group + around;
    const CudnnParts parts = PartsForCudnn(shape, most);
    EXPECT_EQ(std::pair(parts.samples, parts.kv_heads), std::pair(samples, kv_heads));
    EXPECT_EQ(parts.scratch_bytes, most);
    ASSERT_OK_AND_ASSIGN(const std::unique_ptr<CudnnAttention> attention,
                         CudnnAttention::Create(handle, shape, most));
    const std::vector<std::byte> gradient = memory.Run(*attention, parts.scratch_bytes);
    if (whole.empty()) whole = gradient;
    EXPECT_TRUE(gradient == whole) << samples << " samples, " << kv_heads << " kv heads";
  }
}

}  // namespace
}  // namespace stagecoach::kernels::attention_cudnn_test
