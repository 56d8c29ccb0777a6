// Every layer and loss is told which run and which samples it is called for, and is told the same
// wherever the model is split and whatever the order.
#include <algorithm>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "base/mutex.h"
#include "engine/nn/layers/composite/residual.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/ops.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::testing::UnorderedElementsAreArray;

constexpr int kNumberedMicroBatches = 4;
constexpr int64_t kNumberedMicroBatchRows = 3;
constexpr int64_t kNumberedBatchRows = kNumberedMicroBatches * kNumberedMicroBatchRows;
constexpr int kNumberedSteps = 2;

// Who was called, whether for training, step, first sample.
using Call = std::tuple<std::string, bool, int64_t, int64_t>;

struct CallLog {
  void Add(const std::string& name, const CallContext& call) {
    const base::MutexLock lock(mutex);
    calls.emplace_back(name, call.is_training, call.numbers->step, call.numbers->first_sample);
  }
  base::Mutex mutex;
  std::vector<Call> calls;
};

class LoggingLayer final : public Layer {
 public:
  LoggingLayer(CallLog* log, std::string name) : log_(*log), name_(std::move(name)) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    elementwise_ = &context.device.ops().elementwise();
    LayerSpec spec;
    spec.description = "logging";
    spec.output = context.input;
    return spec;
  }
  absl::Status Forward(const LayerArgs& args) override {
    log_.Add(name_ + " F", args.call);
    return elementwise_->Copy(args.stream, args.x, args.y);
  }
  absl::Status BackwardInput(const LayerArgs& args) override {
    log_.Add(name_ + " B", args.call);
    return args.dx.empty() ? absl::OkStatus() : elementwise_->Copy(args.stream, args.dy, args.dx);
  }
  absl::Status BackwardWeight(const LayerArgs& args) override {
    log_.Add(name_ + " W", args.call);
    return absl::OkStatus();
  }

 private:
  CallLog& log_;
  const std::string name_;
  kernels::ElementwiseOps* elementwise_ = nullptr;
};

class LoggingLoss final : public Loss {
 public:
  explicit LoggingLoss(CallLog* log) : log_(*log) {}

  absl::StatusOr<LossSpec> Prepare(const LossContext& context) override {
    return loss_->Prepare(context);
  }
  absl::Status Compute(const LossArgs& args) override {
    log_.Add("loss", args.call);
    return loss_->Compute(args);
  }

 private:
  CallLog& log_;
  const std::unique_ptr<Loss> loss_ = SoftmaxCrossEntropy()();
};

// Returns the calls of two steps, then of an evaluation of a batch and a half.
std::vector<Call> CallsOf(int devices, const std::string& schedule) {
  CallLog log;
  const auto logging = [&log](const char* name) { return LayerOf<LoggingLayer>(&log, name); };
  const Model model = {.input = Shape{kSmallFeatures},
                       .layers = {logging("first"), Linear(6), Residual({logging("inner")}),
                                  Linear(kSmallClasses), logging("last")},
                       .loss = LossOf<LoggingLoss>(&log)};
  const auto trainer = MakeTrainer(
      model, EvenPlan(model, devices, schedule, kNumberedMicroBatches, kNumberedMicroBatchRows),
      {});
  const auto data = SmallData(kNumberedSteps * kNumberedBatchRows);
  for (int step = 0; step < kNumberedSteps; ++step) {
    EXPECT_OK(trainer->Step(*data, Rows(0, kNumberedBatchRows)));  // numbers are not those of rows
  }
  EXPECT_OK(trainer->Evaluate(*SmallData(kNumberedBatchRows + kNumberedBatchRows / 2)));
  return log.calls;
}

std::vector<Call> ExpectedCalls() {
  std::vector<Call> calls;
  for (int64_t micro_batch = 0; micro_batch < kNumberedMicroBatches; ++micro_batch) {
    for (const std::string name : {"first", "inner", "last"}) {
      for (int64_t run = 0; run < 2; ++run) {
        const int64_t first_sample =
            run * kNumberedBatchRows + micro_batch * kNumberedMicroBatchRows;
        for (const char* const op : {" F", " B", " W"}) {
          calls.emplace_back(name + op, true, run + 1, first_sample);
        }
        calls.emplace_back(name + " F", false, kNumberedSteps, first_sample);
      }
    }
    for (int64_t run = 0; run < 2; ++run) {
      const int64_t first_sample = run * kNumberedBatchRows + micro_batch * kNumberedMicroBatchRows;
      calls.emplace_back("loss", true, run + 1, first_sample);
      calls.emplace_back("loss", false, kNumberedSteps, first_sample);
    }
  }
  return calls;
}

TEST(CallContext, IsTheSameForEveryPartitionAndSchedule) {
  const std::vector<Call> expected = ExpectedCalls();
  EXPECT_THAT(CallsOf(1, "gpipe"), UnorderedElementsAreArray(expected));
  std::vector<Call> sorted = expected;
  std::sort(sorted.begin(), sorted.end());
  for (const auto& [devices, schedule] :
       {std::pair(2, "1f1b"), std::pair(5, "gpipe"), std::pair(2, "zb-h1")}) {
    std::vector<Call> calls = CallsOf(devices, schedule);
    std::sort(calls.begin(), calls.end());
    EXPECT_EQ(calls, sorted) << schedule << " on " << devices;
  }
}

}  // namespace
}  // namespace stagecoach::engine
