#include "kernels/cuda/products/blas_lt.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/deadline.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/kernels/cuda/blas_lt_fixture.h"
#include "tests/testing/cuda/cublas_lt_faults.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::blas_lt_test {
namespace {

namespace cuda = ::stagecoach::testing::cuda;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST_F(BlasLtTest, PlansEqualProductsOnce) {
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create());
  const Product product{.m = 16, .n = 8, .k = 4};
  ASSERT_OK_AND_ASSIGN(const MatmulPlan* const plan, blas.blas->Plan(product));
  ASSERT_OK_AND_ASSIGN(const MatmulPlan* const other, blas.blas->Plan({.m = 8, .n = 16, .k = 4}));
  ASSERT_OK_AND_ASSIGN(const MatmulPlan* const again, blas.blas->Plan(product));
  EXPECT_EQ(again, plan);
  EXPECT_NE(other, plan);
}

TEST_F(BlasLtTest, ChoosesWithoutRegardToWhatWasPlannedBefore) {
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create());
  for (size_t i = Products().size(); i-- > 0;) {
    ASSERT_OK_AND_ASSIGN(const Algorithm algorithm, blas.Choose(Products()[i]));
    EXPECT_EQ(algorithm, ChooseAnew("", Products()[i])) << Products()[i].ToString();
  }
}

TEST_F(BlasLtTest, SaysWhichEpilogueTheLibraryDoesNotHave) {
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create());
  const Product product{.m = 7, .n = 8, .k = 8, .epilogue = Epilogue::kGeluAuxBias};
  EXPECT_THAT(blas.blas->Plan(product),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr(product.ToString())));
}

TEST_F(BlasLtTest, AsksForWhatTheLibraryDoesNotHaveOnce) {
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create());
  const Product product{.m = 7, .n = 8, .k = 8, .epilogue = Epilogue::kGeluAuxBias};
  const absl::Status first = blas.blas->Plan(product).status();
  const int64_t calls = cuda::calls();
  EXPECT_EQ(blas.blas->Plan(product).status(), first);
  EXPECT_EQ(cuda::calls(), calls);
}

TEST_F(BlasLtTest, UsesNoAlgorithmThatTheLibrarysCheckRefuses) {
  for (const Product& product : Products()) {
    const Algorithm first = ChooseAnew("", product);
    cuda::SetBlasFaults({.refused = {first.id}});
    EXPECT_NE(ChooseAnew("", product).id, first.id) << product.ToString();
    cuda::SetBlasFaults({});
  }
}

TEST_F(BlasLtTest, UsesNoAlgorithmThatNeedsMoreWorkspaceThanThereIs) {
  for (const Product& product : Products()) {
    const Algorithm first = ChooseAnew("", product);
    const auto all = static_cast<size_t>(MatmulWorkspaceBytes(product, /*compute_major=*/9));
    cuda::SetBlasFaults({.workspace_bytes = {{first.id, all + 1}}});
    EXPECT_NE(ChooseAnew("", product).id, first.id) << product.ToString();
    cuda::SetBlasFaults({.workspace_bytes = {{first.id, all}}});
    EXPECT_EQ(ChooseAnew("", product).id, first.id) << product.ToString();
    cuda::SetBlasFaults({});
  }
}

TEST_F(BlasLtTest, TellsItsChoices) {
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create());
  EXPECT_THAT(blas.blas->choices(), ElementsAre(StartsWith("cuBLASLt: ")));
  const Product product{.m = 16, .n = 8, .k = 4};
  ASSERT_OK_AND_ASSIGN(const Algorithm algorithm, blas.Choose(product));
  EXPECT_THAT(blas.blas->choices(),
              ElementsAre(StartsWith("cuBLASLt: "),
                          absl::StrCat("product A B fp32 16x8x4 -> fp32, none, fp32, on CUDA "
                                       "stand-in, 4 multiprocessors: ",
                                       algorithm.ToString())));
}

TEST_F(BlasLtTest, TellsChoicesInOneOrderWhateverCameFirst) {
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create());
  ASSERT_OK_AND_ASSIGN(const Blas other, Blas::Create("", /*gpu=*/1));
  for (size_t i = 0; i < Products().size(); ++i) {
    EXPECT_OK(blas.Choose(Products()[i]));
    EXPECT_OK(other.Choose(Products()[Products().size() - 1 - i]));
  }
  const std::vector<std::string> choices = blas.blas->choices();
  EXPECT_EQ(choices.size(), 1 + Products().size());
  EXPECT_TRUE(std::is_sorted(choices.begin(), choices.end()));
  EXPECT_EQ(other.blas->choices(), choices);
}

// What tells one choice from another must be in it.
TEST_F(BlasLtTest, TellsAnotherChoiceOfAnotherAlgorithm) {
  const Product product = Products()[0];
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create());
  ASSERT_OK_AND_ASSIGN(const Algorithm first, blas.Choose(product));
  cuda::SetBlasFaults({.refused = {first.id}});
  ASSERT_OK_AND_ASSIGN(const Blas other, Blas::Create());
  ASSERT_OK(other.Choose(product));
  EXPECT_NE(other.blas->choices(), blas.blas->choices());
}

TEST_F(BlasLtTest, UsesWhateverAlgorithmTheFileNames) {
  const Product product{.m = 64, .n = 32, .k = 48};
  ChooseAnew(tuning_file(), product);
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create());
  ASSERT_OK_AND_ASSIGN(const MatmulPlan* const plan, blas.blas->Plan(product));
  ASSERT_OK_AND_ASSIGN(const std::vector<MatmulPlan::CandidateAlgorithm> candidates,
                       plan->Candidates());
  ASSERT_GE(candidates.size(), 2U);
  for (const MatmulPlan::CandidateAlgorithm& candidate : candidates) {
    nlohmann::json tuning = ReadTuning();
    ASSERT_EQ(tuning["choices"].size(), 1U);
    nlohmann::json& choice = tuning["choices"].begin().value();
    choice["id"] = candidate.algorithm.id;
    choice["tile"] = candidate.algorithm.tile;
    choice["stages"] = candidate.algorithm.stages;
    choice["split_k"] = candidate.algorithm.split_k;
    choice["reduction"] = candidate.algorithm.reduction;
    choice["inner_shape"] = candidate.algorithm.inner_shape;
    choice["cluster_shape"] = candidate.algorithm.cluster_shape;
    WriteTuning(tuning);
    EXPECT_EQ(ChooseAnew(tuning_file(), product), candidate.algorithm);
  }
}

TEST_F(BlasLtTest, MeasuresOnceAndKeepsTheChoice) {
  std::map<std::string, Algorithm> choices;
  for (const Product& product : Products()) {
    choices[product.ToString()] = ChooseAnew(tuning_file(), product);
  }
  const nlohmann::json kept = ReadTuning();
  // Other times would be measured now.
  for (uint64_t seed = 2; seed < 6; ++seed) {
    StartMachine({.seed = seed});
    for (const Product& product : Products()) {
      EXPECT_EQ(ChooseAnew(tuning_file(), product), choices[product.ToString()])
          << product.ToString();
    }
  }
  EXPECT_EQ(ReadTuning(), kept);
}

TEST_F(BlasLtTest, TunesPrecisionsApart) {
  const Product product{.m = 64, .n = 32, .k = 48};
  for (const Precision precision : {Precision::kFloat32, Precision::kTf32}) {
    ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file(), 0, precision));
    EXPECT_OK(blas.Choose(product));
  }
  EXPECT_EQ(ReadTuning()["choices"].size(), 2U);
}

TEST_F(BlasLtTest, GivesEqualProductsOfAllDevicesEqualAlgorithms) {
  constexpr int kGpus = 4;
  std::vector<std::vector<Algorithm>> choices(kGpus);
  std::vector<std::thread> threads;
  for (int gpu = 0; gpu < kGpus; ++gpu) {
    threads.emplace_back([&, gpu] {
      const absl::StatusOr<Blas> blas = Blas::Create(tuning_file(), gpu);
      STAGECOACH_CHECK_OK(blas);
      for (const Product& product : Products()) {
        const absl::StatusOr<Algorithm> algorithm = blas->Choose(product);
        STAGECOACH_CHECK_OK(algorithm);
        choices[static_cast<size_t>(gpu)].push_back(*algorithm);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(choices, Each(choices[0]));
}

TEST_F(BlasLtTest, ReportsAChoiceThatTheLibraryDoesNotOffer) {
  const Product product{.m = 64, .n = 32, .k = 48};
  ChooseAnew(tuning_file(), product);
  nlohmann::json tuning = ReadTuning();
  tuning["choices"].begin().value()["id"] = 4711;
  WriteTuning(tuning);
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file()));
  EXPECT_THAT(blas.blas->Plan(product),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       AllOf(HasSubstr(tuning_file()), HasSubstr("64x32x48"))));
}

TEST_F(BlasLtTest, ReportsAChoiceThatTheLibrarysCheckRefuses) {
  const Product product{.m = 64, .n = 32, .k = 48};
  const Algorithm choice = ChooseAnew(tuning_file(), product);
  cuda::SetBlasFaults({.refused = {choice.id}});
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file()));
  EXPECT_THAT(blas.blas->Plan(product),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(tuning_file())));
}

TEST_F(BlasLtTest, RefusesADamagedTuningFile) {
  WriteTuning("damaged");
  EXPECT_THAT(Blas::Create(tuning_file()),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(tuning_file())));
}

TEST(MatmulWorkspace, IsWhatNvidiaRecommendsForLargeProducts) {
  const Product product{.m = 4096, .n = 4096, .k = 4096};
  EXPECT_EQ(MatmulWorkspaceBytes(product, 9), 32 << 20);
  EXPECT_EQ(MatmulWorkspaceBytes(product, 8), 4 << 20);
}

TEST(MatmulWorkspace, IsInProportionToSmallProducts) {
  const Product product{.m = 3, .n = 5, .k = 7};
  const int64_t tensors = product.a_bytes() + product.b_bytes() + product.d_bytes();
  EXPECT_GE(MatmulWorkspaceBytes(product, 9), tensors);
  EXPECT_LT(MatmulWorkspaceBytes(product, 9), 2 * tensors + 256);
}

// A layer's whole life, on memory of the world's own.
absl::Status UseLinear(Device& device, World& world, int64_t outputs) {
  ASSIGN_OR_RETURN(
      const std::unique_ptr<LinearOp> op,
      device.ops().Create(LinearShape{
          .rows = 8, .inputs = 16, .outputs = outputs, .activation = Activation::kGelu}));
  const auto tensor = [&](std::initializer_list<int64_t> dims) -> absl::StatusOr<Tensor> {
    const Shape shape(dims);
    ASSIGN_OR_RETURN(Buffer buffer, device.Allocate(shape.elements() * 4));
    world.buffers.push_back(std::move(buffer));
    return Float32(world.buffers.back().data(), shape);
  };
  ASSIGN_OR_RETURN(const Tensor x, tensor({8, 16}));
  ASSIGN_OR_RETURN(const Tensor w, tensor({16, outputs}));
  ASSIGN_OR_RETURN(const Tensor b, tensor({outputs}));
  ASSIGN_OR_RETURN(const Tensor z, tensor({8, outputs}));
  ASSIGN_OR_RETURN(const Tensor y, tensor({8, outputs}));
  ASSIGN_OR_RETURN(Buffer workspace, device.Allocate(op->workspace_bytes()));
  world.buffers.push_back(std::move(workspace));
  std::byte* const scratch = world.buffers.back().data();
  return RunJob(device, [&](Stream& stream) -> absl::Status {
    RETURN_IF_ERROR(op->Forward(stream, x, w, b, z, y, scratch));
    RETURN_IF_ERROR(op->BackwardInput(stream, y, y, z, w, z, x, scratch));
    RETURN_IF_ERROR(op->BackwardWeight(stream, x, z, w, b, /*accumulate=*/true, scratch));
    return stream.Finish(base::Deadline::After(absl::Minutes(1)), [] { return absl::OkStatus(); });
  });
}

// What goes beside products, and what must follow them.
TEST_F(BlasLtTest, LeavesNothingWhicheverCallFails) {
  for (const int64_t outputs : {24, 7}) {
    ExpectEveryFailureIsClean({.gpus = 1}, [&](World& world) -> absl::Status {
      ASSIGN_OR_RETURN(std::unique_ptr<Device> device, Backend().CreateDevice({}));
      world.devices.push_back(std::move(device));
      return UseLinear(*world.devices.back(), world, outputs);
    });
  }
}

}  // namespace
}  // namespace stagecoach::kernels::blas_lt_test
