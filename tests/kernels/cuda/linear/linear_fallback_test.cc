#include <cublasLt.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda_backend.h"
#include "kernels/device.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/layer_norm.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/ops/linear_fixture.h"
#include "tests/kernels/ops/op_harness.h"
#include "tests/testing/cuda/cublas_lt/faults.h"
#include "tests/testing/status_matchers.h"

// Linear layers for which cuBLASLt has no fused epilogue, which must still compute for every shape;
// and those for which it is slower than the kernels for few rows.
namespace stagecoach::kernels::linear_fallback_test {
namespace {

namespace cuda = ::stagecoach::testing::cuda;
using ::stagecoach::testing::HasTheBitsOf;
using ::stagecoach::testing::LinearTest;
using ::stagecoach::testing::NameOfLinear;
using ::stagecoach::testing::OpBackend;
using ::stagecoach::testing::OpBench;
using ::stagecoach::testing::OpVariant;
using ::stagecoach::testing::ProductBackends;
using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::StartsWith;

bool HasEpilogue(const cuda::Product& product) {
  return product.epilogue != CUBLASLT_EPILOGUE_DEFAULT;
}

std::vector<OpBackend> WithoutEpilogues() {
  std::vector<OpBackend> backends = ProductBackends();
  for (OpBackend& backend : backends) {
    for (OpVariant& variant : backend.variants) {
      variant.create_device = [create = variant.create_device] {
        std::unique_ptr<Device> device = create();
        cuda::SetBlasFaults({.lacks = HasEpilogue});
        return device;
      };
    }
  }
  return backends;
}

using LinearWithoutEpilogues = LinearTest;

TEST_P(LinearWithoutEpilogues, ForwardMatchesReference) { ExpectForward(); }

TEST_P(LinearWithoutEpilogues, BackwardMatchesReference) { ExpectBackward(/*adds=*/true); }

TEST_P(LinearWithoutEpilogues, NeedsTheWorkspaceThatItNeedsWithThem) {
  OpBench bench(backend().variants.front());
  const int64_t without = bench.Create(shape()).workspace_bytes();
  cuda::SetBlasFaults({});
  EXPECT_EQ(bench.Create(shape()).workspace_bytes(), without);
}

std::vector<LinearShape> Cases() {
  std::vector<LinearShape> cases;
  for (const Activation activation : kAllActivations) {
    cases.insert(cases.end(),
                 {{3, 1, 5, activation}, {17, 33, 65, activation}, {64, 48, 32, activation}});
  }
  for (const Activation activation : {Activation::kRelu, Activation::kGelu}) {
    cases.insert(cases.end(), {{1, 1, 1, activation}, {1, 16, 8, activation}});
  }
  return cases;
}
INSTANTIATE_OP_TEST_ON(WithoutEpilogues(), LinearWithoutEpilogues, NameOfLinear,
                       ::testing::ValuesIn(Cases()));

class LinearOfFewRows : public LinearTest {
 public:
  // Makes the library slower than any kernel, which the first device measures.
  static std::vector<OpBackend> WithASlowLibrary() {
    OpBackend backend = ProductBackends()[1];  // of bf16
    for (OpVariant& variant : backend.variants) {
      variant.create_device = [create = variant.create_device]() {
        create();  // a machine with its order of threads
        constexpr int64_t kNs = 1'000'000'000'000;
        cuda::SetBlasFaults({.extra_ns = {{0, kNs}, {21, kNs}, {66, kNs}, {67, kNs}}});
        const absl::StatusOr<CudaBackend*> cuda = CudaBackend::Load();
        STAGECOACH_CHECK_OK(cuda);
        auto device =
            (*cuda)->CreateDevice({.precision = Precision::kBfloat16, .tuning_file = TuningFile()});
        STAGECOACH_CHECK_OK(device);
        return *std::move(device);
      };
    }
    return {backend};
  }

 protected:
  void TearDown() override { std::filesystem::remove(TuningFile()); }

 private:
  static std::string TuningFile() {
    return absl::StrCat(::testing::TempDir(), "/few_rows_", getpid(), ".json");
  }
};

TEST_P(LinearOfFewRows, ForwardMatchesReference) { ExpectForward(); }

TEST_P(LinearOfFewRows, ComputesTheNormBeforeItAndTheSumAfterItWithTheirBits) {
  LinearShape forward = shape();
  forward.forward_only = true;
  const auto y_of = [&](bool at_once) {
    return Results([&](OpBench& bench) {
      LinearOp& op = bench.Create(forward);
      EXPECT_TRUE(op.takes_neighbors());
      LayerNormOp& norm =
          bench.Create(LayerNormShape{.rows = shape().rows, .features = shape().inputs});
      const auto random = [&](const Shape& of, uint32_t seed) {
        return bench.Operand(of, Rounded(RandomNormal(of.elements(), seed)));
      };
      const Shape features = {shape().inputs};
      const Tensor x = random(inputs(), 1), w = random(weights(), 2), b = random(bias(), 3);
      const Tensor gamma = random(features, 4), beta = random(features, 5);
      const Tensor addend = random(outputs(), 6), z = bench.Result(outputs());
      const Tensor y = bench.Result(outputs()), narrow = bench.Result(inputs());
      const Tensor statistics = bench.ResultOf(DType::kFloat32, {shape().rows, 2});
      std::byte* const workspace = bench.Workspace(op.workspace_bytes());
      bench.Run([&](Stream& stream) -> absl::Status {
        if (at_once) {
          return op.ForwardWithNeighbors(stream, {.norm = InputNorm{gamma, beta}, .addend = addend},
                                         x, w, b, z, y, workspace);
        }
        RETURN_IF_ERROR(norm.Forward(stream, x, gamma, beta, {}, statistics, narrow));
        RETURN_IF_ERROR(op.Forward(stream, narrow, w, b, z, y, workspace));
        return bench.ops().elementwise().Add(stream, y, addend, y);
      });
      return y;
    });
  };
  EXPECT_THAT(y_of(true), HasTheBitsOf(y_of(false)));
}

TEST_P(LinearOfFewRows, TakesNoNeighborsIfThereIsABackwardPass) {
  OpBench bench(backend().variants.front());
  EXPECT_FALSE(bench.Create(shape()).takes_neighbors());
}

TEST_P(LinearOfFewRows, IsMeasuredOnceAndTold) {
  std::vector<std::string> first;
  for (const bool is_slow : {true, false}) {
    OpBench bench(backend().variants.front());
    if (!is_slow) cuda::SetBlasFaults({});
    bench.Create(shape());
    std::vector<std::string> told;
    for (const std::string& text : bench.device().choices()) {
      if (absl::StartsWith(text, "few rows bf16 ")) told.push_back(text);
    }
    EXPECT_THAT(told, ::testing::ElementsAre(HasSubstr(": blocks ")));
    if (first.empty()) first = told;
    EXPECT_EQ(told, first);
  }
}

TEST_P(LinearOfFewRows, RefusesMisalignedTensors) {
  OpBench bench(backend().variants.front());
  LinearOp& op = bench.Create(shape());
  Tensor x = bench.Result({shape().rows + 1, shape().inputs});
  x.data = static_cast<std::byte*>(x.data) + 2;
  const Tensor w = bench.Result(weights()), b = bench.Result(bias());
  const Tensor z = bench.Result(outputs()), y = bench.Result(outputs());
  std::byte* const workspace = bench.Workspace(op.workspace_bytes());
  bench.Run([&](Stream& stream) {
    EXPECT_THAT(op.Forward(stream, x, w, b, z, y, workspace),
                StatusIs(absl::StatusCode::kInvalidArgument));
    return absl::OkStatus();
  });
}

INSTANTIATE_OP_TEST_ON(LinearOfFewRows::WithASlowLibrary(), LinearOfFewRows, NameOfLinear,
                       ::testing::Values(LinearShape{8, 64, 48, Activation::kGelu},
                                         LinearShape{1, 40, 24, Activation::kRelu},
                                         LinearShape{3, 72, 8, Activation::kNone, false}));

TEST(LinearFallback, IsForTheShapeThatLacksTheEpilogueAlone) {
  OpBench bench(ProductBackends().front().variants.front());
  cuda::SetBlasFaults({.lacks = [](const cuda::Product& product) {
    return HasEpilogue(product) && product.m == 24;
  }});
  bench.Create(LinearShape{.rows = 8, .inputs = 16, .outputs = 24});
  bench.Create(LinearShape{.rows = 8, .inputs = 16, .outputs = 32});
  const std::vector<std::string> choices = bench.device().choices();
  EXPECT_THAT(choices,
              Contains(AllOf(StartsWith("product A B fp32 24x8x16 -> fp32, bias, fp32, on "),
                             EndsWith(": none"))));
  EXPECT_THAT(choices,
              Contains(AllOf(StartsWith("product A B fp32 24x8x16 -> fp32, none, fp32, on "),
                             HasSubstr(": id "))));
  EXPECT_THAT(choices,
              Contains(AllOf(StartsWith("product A B fp32 32x8x16 -> fp32, bias, fp32, on "),
                             HasSubstr(": id "))));
}

TEST(LinearFallback, SaysWhichProductTheLibraryDoesNotHaveAtAll) {
  OpBench bench(ProductBackends()[1].variants.front());  // of bf16
  cuda::SetBlasFaults({.lacks = [](const cuda::Product&) { return true; }});
  EXPECT_THAT(bench.ops().Create(LinearShape{.rows = 3, .inputs = 5, .outputs = 7}),
              StatusIs(absl::StatusCode::kUnimplemented,
                       AllOf(HasSubstr("3 rows, 5 inputs, 7 outputs"), HasSubstr("bf16 7x3x5"))));
}

}  // namespace
}  // namespace stagecoach::kernels::linear_fallback_test
