// On a GPU, work is recorded and issued again; what it reads of the call context is nevertheless
// that of the current run.
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/status_macros.h"
#include "engine/nn/layers/linear.h"
#include "engine/train/trainer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops/ops.h"
#include "tests/engine/train/cuda/run.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::testing::UnorderedElementsAreArray;

constexpr int kSlots = 2 * kTinyMicroBatches;

class CopyingLayer;

// The layer that was called last: the trainer's.
struct Watch {
  CopyingLayer* layer = nullptr;
};

// A layer that makes the device copy the numbers of each forward pass to a table of its own.
class CopyingLayer final : public Layer {
 public:
  explicit CopyingLayer(Watch* watch) : watch_(*watch) {}

  absl::StatusOr<LayerSpec> Prepare(const LayerContext& context) override {
    device_ = &context.device;
    LayerSpec spec;
    spec.description = "copying";
    spec.output = context.input;
    return spec;
  }
  absl::Status Forward(const LayerArgs& args) override {
    watch_.layer = this;
    if (table_.bytes() == 0) {  // the first call is not recorded
      ASSIGN_OR_RETURN(table_, device_->AllocateTable(kSlots * sizeof(SampleNumbers)));
    }
    const auto slot = static_cast<int64_t>(
        slots_.try_emplace({args.call.numbers, args.call.is_training}, slots_.size())
            .first->second);
    RETURN_IF_ERROR(
        args.stream.Copy(table_.data() + slot * static_cast<int64_t>(sizeof(SampleNumbers)),
                         args.call.numbers, sizeof(SampleNumbers)));
    return device_->ops().elementwise().Copy(args.stream, args.x, args.y);
  }
  absl::Status BackwardInput(const LayerArgs& args) override {
    if (args.dx.empty()) return absl::OkStatus();
    return device_->ops().elementwise().Copy(args.stream, args.dy, args.dx);
  }

  // Returns step and first sample of the last forward passes, in training or in evaluation.
  std::vector<std::pair<int64_t, int64_t>> Copied(bool is_training) {
    const auto host = device_->AllocateHost(table_.bytes()).value();
    device_->stream().Run([&] {
      EXPECT_OK(device_->stream().CopyToHost(host.data(), table_.data(), table_.bytes()));
      EXPECT_OK(device_->stream().Finish(base::Deadline::Never(), [] { return absl::OkStatus(); }));
    });
    std::vector<std::pair<int64_t, int64_t>> copied;
    for (const auto& [key, slot] : slots_) {
      if (key.second != is_training) continue;
      SampleNumbers numbers;
      std::memcpy(&numbers, host.data() + slot * sizeof(SampleNumbers), sizeof(SampleNumbers));
      copied.emplace_back(numbers.step, numbers.first_sample);
    }
    return copied;
  }

 private:
  Watch& watch_;
  kernels::Device* device_ = nullptr;
  kernels::Buffer table_;
  std::map<std::pair<const SampleNumbers*, bool>, size_t> slots_;
};

TEST(CudaCallContext, RecordedWorkReadsTheNumbersOfTheRunAtHand) {
  Watch watch;
  TinyRun run{
      .model = {.input = Shape{kSmallFeatures},
                .layers = {Linear(6), LayerOf<CopyingLayer>(&watch), Linear(kSmallClasses)}}};
  run.options.device.kind = DeviceKind::kCuda;
  const auto trainer = TinyTrainer(run);
  if (absl::IsUnavailable(trainer.status()) && std::getenv("STAGECOACH_REQUIRE_GPU") == nullptr) {
    GTEST_SKIP() << "there is no GPU";
  }
  ASSERT_OK(trainer);
  ASSERT_OK(AnswerOf(**trainer));
  std::vector<std::pair<int64_t, int64_t>> training, evaluation;
  for (int64_t i = 0; i < kTinyMicroBatches; ++i) {
    // The numbers are those of the last of two steps, and of the last of two batches of data.
    training.emplace_back(kTinySteps, (kTinySteps - 1) * kTinyBatchRows + i * kTinyMicroBatchRows);
    evaluation.emplace_back(kTinySteps, kTinyBatchRows + i * kTinyMicroBatchRows);
  }
  EXPECT_THAT(watch.layer->Copied(true), UnorderedElementsAreArray(training));
  EXPECT_THAT(watch.layer->Copied(false), UnorderedElementsAreArray(evaluation));
}

}  // namespace
}  // namespace stagecoach::engine
