#include "kernels/cuda/blas_lt.h"

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
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
#include "kernels/cuda/cuda_stream.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels {
namespace {

namespace cuda = ::stagecoach::testing::cuda;
using ::stagecoach::testing::StatusIs;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

// Products of several kinds, each of which has several algorithms.
const std::vector<Product>& Products() {
  static const auto& products = *new std::vector<Product>{
      {.m = 64, .n = 32, .k = 48, .epilogue = Epilogue::kReluBias},
      {.m = 32, .n = 64, .k = 48},
      {.transpose_a = true, .m = 48, .n = 32, .k = 64},
      {.transpose_b = true, .m = 64, .n = 48, .k = 32, .epilogue = Epilogue::kBiasGradient},
      {.m = 128, .n = 8, .k = 256, .epilogue = Epilogue::kGeluAuxBias}};
  return products;
}

// Without a device around it: a stream, and what plans products for it.
struct Blas {
  std::unique_ptr<CudaStream> stream;
  std::unique_ptr<BlasLt> blas;

  static absl::StatusOr<Blas> Create(const std::string& tuning_file = "", int gpu = 0,
                                     Precision precision = Precision::kFloat32) {
    Blas result;
    ASSIGN_OR_RETURN(result.stream, CudaStream::Create(gpu));
    ASSIGN_OR_RETURN(result.blas, BlasLt::Create(*result.stream, precision, tuning_file));
    return result;
  }
  absl::StatusOr<Algorithm> Choose(const Product& product) const {
    ASSIGN_OR_RETURN(const MatmulPlan* const plan, blas->Plan(product));
    return plan->algorithm();
  }
};

// A machine, and a folder for tuning files that disappears with the test.
class BlasLtTest : public CudaBackendTest {
 protected:
  BlasLtTest()
      : folder_(std::filesystem::path(::testing::TempDir()) /
                absl::StrCat("blas_lt_", getpid(), "_",
                             ::testing::UnitTest::GetInstance()->current_test_info()->name())) {
    std::filesystem::create_directories(folder_);
  }
  ~BlasLtTest() override { std::filesystem::remove_all(folder_); }

  std::string tuning_file() const { return (folder_ / "tuning.json").string(); }

  nlohmann::json ReadTuning() const { return nlohmann::json::parse(std::ifstream(tuning_file())); }
  void WriteTuning(const nlohmann::json& json) const { std::ofstream(tuning_file()) << json; }

  static Algorithm ChooseAnew(const std::string& file, const Product& product) {
    const absl::StatusOr<Blas> blas = Blas::Create(file);
    STAGECOACH_CHECK_OK(blas);
    const absl::StatusOr<Algorithm> algorithm = blas->Choose(product);
    STAGECOACH_CHECK_OK(algorithm);
    return *algorithm;
  }

 private:
  const std::filesystem::path folder_;
};

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

TEST_F(BlasLtTest, UsesWhateverAlgorithmTheFileNames) {
  const Product product{.m = 64, .n = 32, .k = 48};
  ChooseAnew(tuning_file(), product);
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create());
  ASSERT_OK_AND_ASSIGN(const MatmulPlan* const plan, blas.blas->Plan(product));
  ASSERT_OK_AND_ASSIGN(const std::vector<MatmulPlan::Candidate> candidates, plan->Candidates());
  ASSERT_GE(candidates.size(), 2U);
  for (const MatmulPlan::Candidate& candidate : candidates) {
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

TEST_F(BlasLtTest, RefusesADamagedTuningFile) {
  WriteTuning("damaged");
  EXPECT_THAT(Blas::Create(tuning_file()),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(tuning_file())));
}

TEST_F(BlasLtTest, SaysThatThereIsNoMemoryToMeasureWith) {
  StartMachine({.gpus = 1, .memory_bytes = 1 << 20});
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file()));
  EXPECT_THAT(blas.blas->Plan({.m = 1024, .n = 1024, .k = 1024}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1024x1024x1024")));
}

TEST_F(BlasLtTest, GivesBackWhatMeasuringTook) {
  ASSERT_OK_AND_ASSIGN(const Blas untuned, Blas::Create());
  EXPECT_OK(untuned.Choose(Products()[0]));
  ASSERT_OK_AND_ASSIGN(const Blas tuned, Blas::Create(tuning_file(), /*gpu=*/1));
  EXPECT_OK(tuned.Choose(Products()[0]));
  // What each of the two has: nothing but objects of its library and of its stream.
  const cuda::Live live = cuda::live();
  EXPECT_EQ(live.allocations, 0);
  EXPECT_EQ(live.streams, 4);
  EXPECT_EQ(live.blas_objects % 2, 0);
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
      device.ops().CreateLinear(
          {.rows = 8, .inputs = 16, .outputs = outputs, .activation = Activation::kGelu}));
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

TEST_F(BlasLtTest, LeavesNothingWhicheverCallFailsWhileItMeasures) {
  std::string failed;
  int failures = 0;
  for (int64_t call = 1; call == 1 || !failed.empty(); ++call) {
    StartMachine({.gpus = 1});
    std::filesystem::remove(tuning_file());
    {
      ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file()));
      cuda::FailCall(call);
      const absl::Status status = blas.blas->Plan(Products()[0]).status();
      failed = cuda::failed_call();
      // What is given back is given back whichever GPU is the current one.
      if (!failed.empty() && failed != "cudaSetDevice") {
        ++failures;
        EXPECT_THAT(std::string(status.message()), HasSubstr(failed));
        EXPECT_FALSE(std::filesystem::exists(tuning_file())) << "after a failure of " << failed;
      }
    }
    ASSERT_EQ(cuda::live().total(), 0) << "left by a failure of " << failed;
  }
  EXPECT_GT(failures, 50);
}

}  // namespace
}  // namespace stagecoach::kernels
