// Failures of the CUDA libraries and of GPUs, on the simulated machine: each ends in a status that
// says what failed; nothing hangs, and nothing leaks.
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/data/dataset.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/layer_norm.h"
#include "engine/nn/layers/linear.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/cuda/stand_in.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

namespace cuda = ::stagecoach::testing::cuda;
using ::stagecoach::testing::IsRefused;
using ::stagecoach::testing::StatusIs;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

TinyRun CudaRun(Exchange exchange) {
  TinyRun run{.devices = 2, .schedule = "1f1b"};
  run.options.optimizer.clip_norm = 0.05F;
  run.options.device = {.kind = DeviceKind::kCuda};
  run.options.exchange = exchange;
  run.options.deadline = absl::Seconds(10);
  return run;
}

class CudaFailure : public ::testing::TestWithParam<Exchange> {
 protected:
  void SetUp() override { cuda::Reset({}); }
  void TearDown() override {
    EXPECT_TRUE(cuda::NothingIsLeft());
    cuda::Reset({});
  }
};

// The distance between the calls that fail: prime, so that all kinds of calls have their turn.
constexpr int64_t kStride = 97;

TEST_P(CudaFailure, OfAnyCallEndsInAStatusThatNamesIt) {
  int failures = 0;
  for (int64_t call = 1;; call += kStride) {
    cuda::Reset({});
    cuda::FailCall(call);
    const absl::Status status = AnswerOf(CudaRun(GetParam())).status();
    const std::string failed = cuda::failed_call();
    ASSERT_TRUE(cuda::NothingIsLeft()) << "after call " << call << ", " << failed;
    if (failed.empty()) break;
    ++failures;
    if (failed == "cudaGraphInstantiate") {  // then work is issued without a graph
      EXPECT_OK(status);
      continue;
    }
    // The same applies after one of these has failed while the streams of a graph were captured.
    const bool forks = failed == "cudaEventRecord" || failed == "cudaStreamWaitEvent";
    if (forks && status.ok()) continue;
    // A failure to switch back to another GPU at the end of a scope is not reported; that of the
    // next call is.
    if (failed == "cudaSetDevice") continue;
    const bool launches = failed == "cudaLaunchKernelEx" || failed == "cudaFuncSetAttribute";
    EXPECT_THAT(std::string(status.message()), HasSubstr(launches ? "Launch" : failed))
        << "call " << call;
  }
  EXPECT_GT(failures, 50);
}

TEST_P(CudaFailure, OfAnyOperationEndsInAStatusAndLeavesNothing) {
  int failures = 0;
  bool ended_well = false;
  for (int64_t operation = 0; !ended_well; operation += kStride) {
    cuda::Reset({});
    cuda::FailOperation(operation);
    const absl::Status status = AnswerOf(CudaRun(GetParam())).status();
    ended_well = status.ok();
    ASSERT_TRUE(cuda::NothingIsLeft()) << "after operation " << operation;
    if (ended_well) break;
    ++failures;
  }
  EXPECT_GT(failures, 20);
}

// The host reads labels ahead of their step, and the error is that step's.
TEST_P(CudaFailure, ALabelThatIsNoClassIsRefusedByItsStep) {
  const auto data = Mislabeled(SmallData(2 * kTinyBatchRows), kTinyBatchRows + 4, kSmallClasses);
  TinyRun run = CudaRun(GetParam());
  run.devices = 1;
  const auto trainer = TinyTrainer(run);
  ASSERT_OK(trainer);
  const std::vector<int64_t> next = Rows(kTinyBatchRows, kTinyBatchRows);
  EXPECT_OK((*trainer)->Step(*data, Rows(0, kTinyBatchRows), next));
  EXPECT_THAT((*trainer)->Step(*data, next),
              IsRefused("micro-batch 1: label of row 28 is 4, expected 0 to 3"));
}

// Matches rank, stage, operation and micro-batch of an error within a step, as docs/distributed.md
// promises.
auto SaysWhereItWas() {
  return ContainsRegex(
      "rank [01], (NORM of group 0|stage [01] (STEP|(F|BW|SEND_F|RECV_F|SEND_B|RECV_B) "
      "micro-batch [0-7]))");
}

TEST_P(CudaFailure, OfAnyOperationOfAStepSaysWhereItWas) {
  const auto data = SmallData(kTinyBatchRows);
  int failures = 0;
  for (int64_t operation = 0;; operation += kStride) {
    cuda::Reset({});
    const auto trainer = TinyTrainer(CudaRun(GetParam())).value();
    cuda::FailOperation(operation);
    const absl::Status status = trainer->Step(*data, Rows(0, kTinyBatchRows)).status();
    if (status.ok()) break;
    ++failures;
    EXPECT_THAT(std::string(status.message()), SaysWhereItWas()) << "operation " << operation;
  }
  EXPECT_GT(failures, 4);
}

INSTANTIATE_TEST_SUITE_P(Exchanges, CudaFailure,
                         ::testing::Values(Exchange::kCopies, Exchange::kNccl),
                         [](const auto& test) {
                           return test.param == Exchange::kNccl ? "Nccl" : "Copies";
                         });

TEST_F(CudaFailure, WithoutDriverThereIsNoDevice) {
  cuda::Reset({.driver = false});
  EXPECT_THAT(TinyTrainer(CudaRun(Exchange::kCopies)),
              StatusIs(absl::StatusCode::kUnavailable, "driver"));
}

TEST_F(CudaFailure, TooFewGpusAreNamed) {
  cuda::Reset({.gpus = 1});
  EXPECT_THAT(TinyTrainer(CudaRun(Exchange::kCopies)),
              StatusIs(absl::StatusCode::kUnavailable, "GPU 1"));
}

TEST_F(CudaFailure, TooLittleMemoryIsSaid) {
  cuda::Reset({.memory_bytes = 4 << 10});
  EXPECT_THAT(TinyTrainer(CudaRun(Exchange::kCopies)),
              StatusIs(absl::StatusCode::kResourceExhausted));
}

// A rank's group never completes: the others also end, and report where they were.
TEST_F(CudaFailure, OfACommunicatorEndsTheStep) {
  auto trainer = TinyTrainer(CudaRun(Exchange::kNccl)).value();
  cuda::FailCommunicator(/*rank=*/1, /*groups=*/3);
  EXPECT_THAT(std::string(AnswerOf(*trainer).status().message()), SaysWhereItWas());
}

// A thread that issues more would block in the driver, where it cannot learn that another rank has
// failed. The step has four times as much work, and little is done before the host waits.
TEST_F(CudaFailure, FindsRoomInTheQueuesOfTheDriver) {
  cuda::Reset({.delay = 0.9});
  TinyRun run = CudaRun(Exchange::kNccl);
  run.schedule = "interleaved";
  run.chunks = 4;
  const auto trainer = TinyTrainer(run).value();
  cuda::TakeMostPending();
  EXPECT_OK(AnswerOf(*trainer));
  EXPECT_LT(cuda::TakeMostPending(), 500U);
}

// Keeps the first stage, and with it all others, waiting at the first sample until no more kernels
// are launched, and records how many there were by then.
class LateData final : public Dataset {
 public:
  explicit LateData(std::shared_ptr<const Dataset> data)
      : Dataset(data->spec()), data_(std::move(data)) {}
  int64_t rows() const override { return data_->rows(); }
  int64_t launches_meanwhile() const { return launches_; }

 private:
  static int64_t Launches() { return cuda::CallsByName()["cudaLaunchKernelEx"]; }
  void ReadInput(int i, int64_t row, std::byte* out) const override {
    std::call_once(once_, [&] {
      const int64_t before = Launches();
      int64_t now = before, last = -1;
      while (now != last) {
        last = now;
        std::this_thread::sleep_for(std::chrono::milliseconds(200));
        now = Launches();
      }
      launches_ = now - before;
    });
    data_->CopyInput(i, row, {out, kSmallFeatures * sizeof(float)});
  }
  void ReadTarget(int64_t row, std::byte* out) const override {
    data_->CopyTarget(row, {out, sizeof(int32_t)});
  }

  const std::shared_ptr<const Dataset> data_;
  mutable std::once_flag once_;
  mutable std::atomic<int64_t> launches_{0};
};

// A pass that alone fills the driver's queue is not issued behind a message that has not arrived:
// the host would wait in the driver, and never learn that the sending rank has failed.
TEST_F(CudaFailure, OfASenderWouldBeSeenBeforeAPassThatFillsTheQueue) {
  TinyRun run = CudaRun(Exchange::kNccl);
  run.options.deadline = absl::Minutes(5);
  const LayerFactory block = Residual({LayerNorm(), Linear(9, Activation::kGelu)});
  run.model = {.input = Shape{kSmallFeatures}, .layers = {Linear(9)}};
  run.model.layers.resize(160, block);
  run.model.layers.push_back(Linear(kSmallClasses));
  run.first_layer = {0, 2};
  cuda::Reset({.graphs = false});
  const auto trainer = TinyTrainer(run).value();
  const LateData data(SmallData(kTinyBatchRows));
  ASSERT_OK(trainer->Step(data, Rows(0, kTinyBatchRows)));
  EXPECT_LT(data.launches_meanwhile(), 100);
}

// Passes that are not graphs have hundreds of operations each: few of them fill the queues.
TEST_F(CudaFailure, FindsRoomInTheQueuesForPassesThatAreNoGraphs) {
  TinyRun run = CudaRun(Exchange::kNccl);
  run.options.deadline = absl::Minutes(5);  // sanitizers are slow
  const LayerFactory block = Residual({LayerNorm(), Linear(9, Activation::kGelu)});
  run.model = {.input = Shape{kSmallFeatures},
               .layers = {Linear(9), block, block, block, block, block, block, block, block, block,
                          block, block, block, block, block, block, block, Linear(kSmallClasses)}};
  cuda::Reset({});
  ASSERT_OK_AND_ASSIGN(const TinyAnswer expected, AnswerOf(run));
  cuda::Reset({.delay = 0.99, .graphs = false});
  const auto trainer = TinyTrainer(run).value();
  cuda::TakeMostPending();
  // One step shows it: each begins when the one before has ended.
  const int64_t rows = trainer->plan().batch_rows();
  const auto data = TinyData(run.model, kTinySteps * rows);
  ASSERT_OK_AND_ASSIGN(const StepResult result, trainer->Step(*data, Rows(0, rows)));
  EXPECT_EQ(result.loss, expected.losses.front());
  EXPECT_LT(cuda::TakeMostPending(), 700U);
}

}  // namespace
}  // namespace stagecoach::engine
