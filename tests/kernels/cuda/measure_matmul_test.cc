#include "kernels/cuda/products/measure_matmul.h"

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/products/blas_lt.h"
#include "kernels/device.h"
#include "kernels/ops/linear.h"
#include "kernels/ops/ops.h"
#include "tests/kernels/cuda/blas_lt_fixture.h"
#include "tests/testing/cuda/cublas_lt/faults.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::measure_matmul_test {
namespace {

namespace cuda = ::stagecoach::testing::cuda;
using ::stagecoach::testing::StatusIs;
using ::testing::AnyOf;
using ::testing::Eq;
using ::testing::HasSubstr;

// Tests which algorithm is chosen when the tuning file has no choice yet.
class MeasureMatmul : public BlasLtTest {
 protected:
  // Time of this GPU's clock, compared to which the stand-in's own time is negligible.
  static constexpr int64_t kRunNs = 1'000'000'000'000;

  static std::vector<int32_t> CandidatesOf(const Product& product) {
    const absl::StatusOr<Blas> blas = Blas::Create();
    STAGECOACH_CHECK_OK(blas);
    const absl::StatusOr<const MatmulPlan*> plan = blas->blas->Plan(product);
    STAGECOACH_CHECK_OK(plan);
    const auto candidates = (*plan)->Candidates();
    STAGECOACH_CHECK_OK(candidates);
    std::vector<int32_t> ids;
    for (const MatmulPlan::CandidateAlgorithm& candidate : *candidates) {
      ids.push_back(candidate.algorithm.id);
    }
    STAGECOACH_CHECK(ids.size() >= 3, "too few algorithms to choose from");
    return ids;
  }
  // Makes all take the same time except `id`, which takes `percent` of it.
  static cuda::BlasFaults Times(const std::vector<int32_t>& ids, int32_t id, int percent) {
    cuda::BlasFaults faults;
    for (const int32_t other : ids) faults.extra_ns[other] = kRunNs;
    faults.extra_ns[id] = kRunNs / 100 * percent;
    return faults;
  }
  int32_t Measure(const Product& product) const {
    std::filesystem::remove(tuning_file());
    return ChooseAnew(tuning_file(), product).id;
  }

  const Product product_{.m = 64, .n = 32, .k = 48};
};

TEST_F(MeasureMatmul, ChoosesTheFastest) {
  for (const Product& product : Products()) {
    const std::vector<int32_t> ids = CandidatesOf(product);
    for (const int32_t id : ids) {
      cuda::SetBlasFaults(Times(ids, id, 90));
      EXPECT_EQ(Measure(product), id) << product.ToString();
    }
  }
}

// The library offers more algorithms than are fast by its own estimates.
TEST_F(MeasureMatmul, ChoosesAmongMoreThanAFew) {
  const auto own = static_cast<int>(CandidatesOf(product_).size());
  cuda::SetBlasFaults({.further = 60});
  const std::vector<int32_t> ids = CandidatesOf(product_);
  EXPECT_EQ(ids.size(), 32U);
  EXPECT_EQ(ids.back(), cuda::kFirstFurtherId + 31 - own);
  for (const int32_t id : {ids[0], ids[9], ids[20], ids[31]}) {
    cuda::BlasFaults faults = Times(ids, id, 90);
    faults.further = 60;
    cuda::SetBlasFaults(faults);
    EXPECT_EQ(Measure(product_), id);
  }
}

TEST_F(MeasureMatmul, KeepsToTheLibrarysFirstChoiceWhereManyAreAlike) {
  cuda::SetBlasFaults({.further = 60});
  const std::vector<int32_t> ids = CandidatesOf(product_);
  for (const int percent : {99, 97}) {
    cuda::BlasFaults faults = {.further = 60};
    for (const int32_t id : ids) faults.extra_ns[id] = kRunNs / 100 * percent;
    faults.extra_ns[ids[0]] = kRunNs;
    cuda::SetBlasFaults(faults);
    EXPECT_EQ(Measure(product_) == ids[0], percent == 99);
  }
}

// The number of runs decides how long measuring takes if a run takes more than a millisecond.
TEST_F(MeasureMatmul, RunsAProductNoMoreOftenThanItSays) {
  for (const int further : {0, 20, 60}) {
    cuda::SetBlasFaults({.further = further});
    const std::vector<int32_t> ids = CandidatesOf(product_);
    cuda::BlasFaults faults = Times(ids, ids[0], 100);
    faults.further = further;
    cuda::SetBlasFaults(faults);
    const int64_t before = cuda::CallsByName()["cublasLtMatmul"];
    Measure(product_);
    EXPECT_LE(cuda::CallsByName()["cublasLtMatmul"] - before, 4 * std::ssize(ids) + 32);
  }
}

TEST_F(MeasureMatmul, KeepsToTheLibrarysOrderWhereTimesAreAlike) {
  const std::vector<int32_t> ids = CandidatesOf(product_);
  cuda::SetBlasFaults(Times(ids, ids.back(), 99));
  EXPECT_EQ(Measure(product_), ids.front());
  cuda::SetBlasFaults(Times(ids, ids.back(), 97));
  EXPECT_EQ(Measure(product_), ids.back());
}

TEST_F(MeasureMatmul, NeverChoosesWhatGivesOtherBitsOnEveryRun) {
  for (const Product& product : Products()) {
    const std::vector<int32_t> ids = CandidatesOf(product);
    for (const int32_t id : ids) {
      cuda::BlasFaults faults = Times(ids, id, 50);
      faults.unsteady = {id};
      cuda::SetBlasFaults(faults);
      EXPECT_NE(Measure(product), id) << product.ToString();
    }
  }
}

// The first that runs is what the others must agree with.
TEST_F(MeasureMatmul, NeverChoosesWhatComputesOtherNumbers) {
  for (const Product& product : Products()) {
    const std::vector<int32_t> ids = CandidatesOf(product);
    for (size_t i = 1; i < ids.size(); ++i) {
      cuda::BlasFaults faults = Times(ids, ids[i], 50);
      faults.wrong = {ids[i]};
      cuda::SetBlasFaults(faults);
      EXPECT_EQ(Measure(product), ids.front()) << product.ToString();
      faults.failing = {ids.front()};
      cuda::SetBlasFaults(faults);
      EXPECT_EQ(Measure(product) == ids[i], i == 1) << product.ToString();
    }
  }
}

TEST_F(MeasureMatmul, PassesOverWhatFailsToRun) {
  for (const Product& product : Products()) {
    const std::vector<int32_t> ids = CandidatesOf(product);
    for (const int32_t id : ids) {
      cuda::BlasFaults faults = Times(ids, id, 50);
      faults.failing = {id};
      cuda::SetBlasFaults(faults);
      EXPECT_NE(Measure(product), id) << product.ToString();
    }
  }
}

TEST_F(MeasureMatmul, ChecksAnAlgorithmThatIsTheOnlyOne) {
  const std::vector<int32_t> ids = CandidatesOf(product_);
  const int32_t only = ids[0];
  cuda::BlasFaults faults = {.refused = {ids.begin() + 1, ids.end()}};
  cuda::SetBlasFaults(faults);
  EXPECT_EQ(Measure(product_), only);
  faults.unsteady = {only};
  cuda::SetBlasFaults(faults);
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file() + ".other"));
  EXPECT_THAT(blas.blas->Plan(product_), StatusIs(absl::StatusCode::kUnimplemented,
                                                  HasSubstr("its bits differ from run to run")));
}

// ---- Fused with the epilogue, or a kernel after the product without it.

class EpilogueOrApart : public MeasureMatmul {
 protected:
  // Makes all products take kRunNs, those with an epilogue `epilogue_percent` of that in addition,
  // and the kernel that follows `apart_percent` of it. Returns true if the product is then computed
  // with its epilogue.
  bool IsFused(const Product& product, int epilogue_percent, int apart_percent) const {
    Product plain = product;
    plain.epilogue = Epilogue::kNone;
    cuda::BlasFaults faults;
    for (const Product& either : {product, plain}) {
      for (const int32_t id : CandidatesOf(either)) faults.extra_ns[id] = kRunNs;
    }
    faults.epilogue_extra_ns = kRunNs / 100 * epilogue_percent;
    cuda::SetBlasFaults(faults);
    std::filesystem::remove(tuning_file());
    const absl::StatusOr<Blas> blas = Blas::Create(tuning_file());
    STAGECOACH_CHECK_OK(blas);
    const absl::StatusOr<const MatmulPlan*> plan = blas->blas->Plan(product, Taking(apart_percent));
    EXPECT_TRUE(plan.ok() || absl::IsUnimplemented(plan.status())) << plan.status();
    return plan.ok();
  }

  static Followed::Function Taking(int percent) {
    return [percent](cudaStream_t stream, const MatmulPlan::Operands&) {
      const cudaError_t error = cuda::Enqueue(
          stream, {.name = "what follows", .run = [] {}, .extra_ns = kRunNs / 100 * percent});
      return error == cudaSuccess ? absl::OkStatus() : absl::InternalError("cannot enqueue");
    };
  }
};

TEST_F(EpilogueOrApart, IsWhatTakesLessTime) {
  for (const Product& product : Products()) {
    if (product.epilogue == Epilogue::kNone) continue;
    EXPECT_TRUE(IsFused(product, 30, 40)) << product.ToString();
    EXPECT_FALSE(IsFused(product, 40, 30)) << product.ToString();
  }
}

TEST_F(EpilogueOrApart, IsTheEpilogueWhereTimesAreAlike) {
  EXPECT_TRUE(IsFused(Products()[0], 11, 10));
  EXPECT_FALSE(IsFused(Products()[0], 14, 10));
}

TEST_F(EpilogueOrApart, IsKeptInTheFile) {
  const Product& product = Products()[0];
  ASSERT_FALSE(IsFused(product, 50, 10));
  const nlohmann::json kept = ReadTuning();
  EXPECT_EQ(kept["choices"].size(), 2U) << "of the product with its epilogue, and without";
  cuda::SetBlasFaults({});
  ASSERT_OK_AND_ASSIGN(const Blas later, Blas::Create(tuning_file()));
  EXPECT_THAT(later.blas->Plan(product, Taking(1000)), StatusIs(absl::StatusCode::kUnimplemented));
  EXPECT_EQ(ReadTuning(), kept);
}

TEST_F(EpilogueOrApart, IsTheEpilogueWhereNothingIsMeasured) {
  cuda::SetBlasFaults({.epilogue_extra_ns = kRunNs});
  ASSERT_OK_AND_ASSIGN(const Blas untuned, Blas::Create());
  EXPECT_OK(untuned.blas->Plan(Products()[0], Taking(0)));
}

TEST_F(EpilogueOrApart, IsChosenByLinearLayers) {
  cuda::SetBlasFaults({.epilogue_extra_ns = kRunNs});
  ASSERT_OK_AND_ASSIGN(
      const std::unique_ptr<Device> device,
      Backend().CreateDevice({.precision = Precision::kBfloat16, .tuning_file = tuning_file()}));
  ASSERT_OK(device->ops().Create(
      LinearShape{.rows = 64, .inputs = 32, .outputs = 48, .activation = Activation::kGelu}));
  const nlohmann::json choices = ReadTuning()["choices"];
  int apart = 0;
  for (const auto& [key, choice] : choices.items()) {
    apart += choice["apart"].get<int>();
  }
  EXPECT_EQ(apart, 1);
}

TEST_F(MeasureMatmul, SaysWhyNoneServes) {
  const std::vector<int32_t> ids = CandidatesOf(product_);
  cuda::SetBlasFaults({.failing = {ids.begin(), ids.end()}});
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file()));
  EXPECT_THAT(blas.blas->Plan(product_),
              StatusIs(absl::StatusCode::kUnimplemented, HasSubstr("EXECUTION_FAILED")));
  EXPECT_FALSE(std::filesystem::exists(tuning_file()));
}

TEST_F(MeasureMatmul, EndsWithAnErrorOfTheGpu) {
  int failures = 0;
  for (int64_t operation = 0;; ++operation) {
    StartMachine({.gpus = 1});
    cuda::SetBlasFaults(Times({66, 67, 21, 0}, 66, 100));
    std::filesystem::remove(tuning_file());
    ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file()));
    cuda::FailOperation(operation);
    const absl::Status status = blas.blas->Plan(product_).status();
    cuda::FailOperation(-1);
    if (status.ok()) break;
    ++failures;
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInternal, HasSubstr("cudaErrorIllegalAddress")))
        << "operation " << operation;
    EXPECT_FALSE(std::filesystem::exists(tuning_file())) << "operation " << operation;
  }
  EXPECT_GT(failures, 20);
}

TEST_F(MeasureMatmul, SaysThatThereIsNoMemoryToMeasureWith) {
  StartMachine({.gpus = 1, .memory_bytes = 1 << 20});
  ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file()));
  EXPECT_THAT(blas.blas->Plan({.m = 1024, .n = 1024, .k = 1024}),
              StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1024x1024x1024")));
}

TEST_F(MeasureMatmul, GivesBackWhatMeasuringTook) {
  ASSERT_OK_AND_ASSIGN(const Blas untuned, Blas::Create());
  EXPECT_OK(untuned.Choose(Products()[0]));
  const int64_t of_one = cuda::live().blas_objects;
  ASSERT_OK_AND_ASSIGN(const Blas tuned, Blas::Create(tuning_file(), /*gpu=*/1));
  EXPECT_OK(tuned.Choose(Products()[0]));
  // Each of the two has nothing but objects of its library and of its stream.
  const cuda::Live live = cuda::live();
  EXPECT_EQ(live.allocations, 0);
  EXPECT_EQ(live.streams, 8);
  EXPECT_EQ(live.blas_objects, 2 * of_one);
}

// A library's error about one algorithm skips that algorithm; all others end the search.
TEST_F(MeasureMatmul, LeavesNothingWhicheverCallFails) {
  std::string failed;
  int failures = 0, passed_over = 0;
  for (int64_t call = 1; call == 1 || !failed.empty(); ++call) {
    StartMachine({.gpus = 1});
    cuda::SetBlasFaults(Times({66, 67, 21, 0}, 66, 100));
    std::filesystem::remove(tuning_file());
    {
      ASSERT_OK_AND_ASSIGN(const Blas blas, Blas::Create(tuning_file()));
      cuda::FailCall(call);
      const absl::Status status = blas.blas->Plan(Products()[0]).status();
      failed = cuda::failed_call();
      const std::string name = failed == "cudaLaunchKernelEx" ? "Launch" : failed;
      // Releases work whichever GPU is the current one.
      if (!failed.empty() && failed != "cudaSetDevice") {
        ++failures;
        if (status.ok()) {
          ++passed_over;
          EXPECT_THAT(failed, AnyOf(Eq("cublasLtMatmul"), Eq("cublasLtMatmulDescSetAttribute")));
        } else {
          EXPECT_THAT(std::string(status.message()), HasSubstr(name));
        }
        EXPECT_EQ(std::filesystem::exists(tuning_file()), status.ok())
            << "after a failure of " << failed;
      }
    }
    ASSERT_TRUE(cuda::NothingIsLeft()) << "left by a failure of " << failed;
  }
  EXPECT_GT(failures, 50);
  EXPECT_GT(passed_over, 10);
}

}  // namespace
}  // namespace stagecoach::kernels::measure_matmul_test
