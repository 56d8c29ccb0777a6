// How the updates of a step are held back until every rank has all its inputs, and completed after
// a failure.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "engine/comm/transport.h"
#include "engine/diagnosis/flight_recorders.h"
#include "engine/runtime/executor.h"
#include "engine/train/prepared_run.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::IsOk;
using ::stagecoach::testing::StatusIs;
using ::testing::Each;

constexpr int kRanks = 2;
constexpr int kMicroBatches = 2;
constexpr int64_t kRows = 4;  // of a micro-batch

// Wraps another transport, whose rank loses its connection after N of the waits that follow the
// posting of a message of a kind.
class Losing final : public Transport {
 public:
  explicit Losing(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  void Lose(Message::Kind kind, int waits) {
    kind_ = kind;
    waits_ = waits;
  }

  Rank rank() const override { return inner_->rank(); }
  int ranks() const override { return inner_->ranks(); }
  absl::StatusOr<Ticket> PostSend(Rank to, const Message& message,
                                  const kernels::Tensor& tensor) override {
    return inner_->PostSend(to, message, tensor);
  }
  absl::StatusOr<Ticket> PostReceive(Rank from, const Message& message,
                                     const kernels::Tensor& tensor) override {
    last_received_ = message.kind;
    return inner_->PostReceive(from, message, tensor);
  }
  absl::Status Flush() override { return inner_->Flush(); }
  absl::Status Wait(const Ticket& ticket, base::Deadline deadline) override {
    RETURN_IF_ERROR(inner_->Wait(ticket, deadline));
    const bool loses = last_received_ == kind_ && --waits_ == 0;
    return loses ? absl::UnavailableError("lost") : absl::OkStatus();
  }
  absl::StatusOr<std::chrono::steady_clock::time_point> DeliveredAt(const Ticket& ticket) override {
    return inner_->DeliveredAt(ticket);
  }
  void Restart() override { inner_->Restart(); }
  absl::Status Poll() override { return inner_->Poll(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> inner_;
  Message::Kind kind_ = Message::Kind::kResults;
  Message::Kind last_received_ = Message::Kind::kActivation;
  int waits_ = 0;  // until it is lost; below 1: it is not
};

// Two ranks with gradient clipping, so that updates wait for all gradients.
class UpdatesTest : public ::testing::Test {
 protected:
  UpdatesTest() : run_(Prepare(schedule::ResultsPlace::kBeforeSteps)) { Connect(); }

  static PreparedRun Prepare(schedule::ResultsPlace results) {
    Optimizer optimizer = Optimizer::AdamW();
    optimizer.clip_norm = 0.5F;
    return PrepareRun(SmallModel(), {.devices = kRanks,
                                     .micro_batches = kMicroBatches,
                                     .micro_batch_rows = kRows,
                                     .optimizer = optimizer,
                                     .results = results})
        .value();
  }

  void Connect() {
    executors_.clear();
    devices_.clear();
    transports_.clear();
    InProcessOptions group = {.max_outstanding = 4 * kMicroBatches};
    for (int rank = 0; rank < kRanks; ++rank) {
      devices_.push_back(kernels::CreateCpuDevice({}).value());
      group.devices.push_back(devices_.back().get());
    }
    std::vector<std::unique_ptr<Transport>> transports = CreateInProcessTransports(group).value();
    for (std::unique_ptr<Transport>& transport : transports) {
      transports_.push_back(std::make_unique<Losing>(std::move(transport)));
    }
    recorders_ = FlightRecorders::Create(
                     {}, {{.device = 0, .devices = kRanks}, {.device = 1, .devices = kRanks}})
                     .value();
    for (int rank = 0; rank < kRanks; ++rank) {
      devices_[static_cast<size_t>(rank)]->stream().Run(
          [&] { executors_.push_back(MakeExecutor(rank)); });
    }
  }

  std::unique_ptr<Executor> MakeExecutor(int rank) {
    kernels::Device& device = *devices_[static_cast<size_t>(rank)];
    std::vector<std::unique_ptr<Stage>> stages;
    stages.push_back(
        Stage::Create(device, run_.model, run_.profile.parameters,
                      {.id = StageId(rank),
                       .first_layer = run_.plan().first(rank),
                       .last_layer = run_.plan().last(rank),
                       .is_first = rank == 0,
                       .is_last = rank == kRanks - 1,
                       .input = run_.profile.inputs[static_cast<size_t>(run_.plan().first(rank))],
                       .micro_batch_rows = kRows,
                       .micro_batches = kMicroBatches,
                       .optimizer = run_.optimizer})
            .value());
    const partition::RankReport& memory = run_.compiled.of(Rank(rank));
    return Executor::Create({.device = &device,
                             .number = rank,
                             .transport = transports_[static_cast<size_t>(rank)].get(),
                             .recorder = &recorders_->of(rank),
                             .seed = 1,
                             .parameters = &run_.profile.parameters,
                             .output = run_.profile.output,
                             .clip_norm = run_.optimizer.clip_norm,
                             .collectives = run_.compiled.lowered->collectives,
                             .training = {&run_.compiled.lowered->training, memory.training},
                             .evaluation = {&run_.compiled.lowered->evaluation, memory.evaluation}},
                            std::move(stages))
        .value();
  }

  // Runs both ranks, each of which ends the other's waits if it fails.
  std::vector<absl::Status> Step(int64_t number) {
    const auto data = SmallData(64);
    const std::vector<int64_t> rows = Rows(0, kMicroBatches * kRows);
    std::vector<absl::Status> statuses(kRanks);
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        devices_[rank]->stream().Run([&] {
          statuses[rank] = executors_[rank]->Train(
              {.data = data.get(), .rows = rows, .step = number},
              {.update = {.step = number, .learning_rate = 1e-3F}}, nullptr);
          if (!statuses[rank].ok()) transports_[rank]->Abort(statuses[rank]);
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }
  absl::Status Complete(size_t rank) {
    absl::Status status;
    devices_[rank]->stream().Run([&] { status = executors_[rank]->CompleteUpdates(); });
    return status;
  }
  std::vector<float> Values(size_t rank) {
    std::vector<float> values;
    for (const TrainedPiece& piece : executors_[rank]->TrainedPieces()) {
      values.insert(values.end(), piece.tensor.f32(), piece.tensor.f32() + piece.tensor.elements());
    }
    return values;
  }
  std::vector<std::vector<float>> ValuesAfter(int64_t steps) {
    Connect();
    for (int64_t step = 1; step <= steps; ++step) EXPECT_THAT(Step(step), Each(IsOk()));
    return {Values(0), Values(1)};
  }

  PreparedRun run_;
  std::vector<std::unique_ptr<kernels::Device>> devices_;
  std::vector<std::unique_ptr<Losing>> transports_;
  std::unique_ptr<FlightRecorders> recorders_;
  std::vector<std::unique_ptr<Executor>> executors_;
};

TEST_F(UpdatesTest, AreNotBegunWhereARankIsLostBeforeItHasAllSums) {
  const std::vector<std::vector<float>> before = ValuesAfter(1);
  transports_[0]->Lose(Message::Kind::kNorms, 1);
  const std::vector<absl::Status> statuses = Step(2);
  EXPECT_THAT(statuses, Each(StatusIs(absl::StatusCode::kUnavailable)));
  EXPECT_EQ(executors_[0]->updates(), Executor::Updates::kNone);
  EXPECT_THAT(Complete(0), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(executors_[1]->updates(), Executor::Updates::kMay);  // it cannot know
  EXPECT_EQ(Values(0), before[0]);
  EXPECT_EQ(Values(1), before[1]);
}

// Each waits for the other's RESULTS twice: to send its own, and to receive. Then the other rank
// continues with the step.
TEST_F(UpdatesTest, AreCompletedWhereAnotherRankMayHaveBegun) {
  const std::vector<std::vector<float>> after = ValuesAfter(2);
  for (size_t lost = 0; lost < kRanks; ++lost) {
    const std::vector<std::vector<float>> before = ValuesAfter(1);
    transports_[lost]->Lose(Message::Kind::kResults, 2);
    const std::vector<absl::Status> statuses = Step(2);
    EXPECT_THAT(statuses[lost], StatusIs(absl::StatusCode::kUnavailable));
    EXPECT_EQ(executors_[lost]->updates(), Executor::Updates::kMay);
    EXPECT_EQ(Values(lost), before[lost]);
    // It has completed, unless it waited for the lost rank to take its last message.
    EXPECT_EQ(executors_[1 - lost]->updates(),
              statuses[1 - lost].ok() ? Executor::Updates::kNone : Executor::Updates::kAllMust);
    EXPECT_EQ(Values(1 - lost), after[1 - lost]);
    EXPECT_THAT(Complete(lost), IsOk());
    EXPECT_EQ(Values(lost), after[lost]);
  }
}

// At the end of a step, ranks wait until their last messages have been taken.
TEST_F(UpdatesTest, AreNotMadeTwiceWhereARankIsLostAfterThem) {
  const std::vector<std::vector<float>> after = ValuesAfter(2);
  ValuesAfter(1);
  transports_[0]->Lose(Message::Kind::kResults, 3);
  EXPECT_THAT(Step(2)[0], StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_EQ(executors_[0]->updates(), Executor::Updates::kAllMust);
  EXPECT_EQ(Values(0), after[0]);
  EXPECT_THAT(Complete(0), IsOk());
  EXPECT_EQ(Values(0), after[0]);
}

TEST_F(UpdatesTest, WaitWhereResultsComeBeforeStepsAlone) {
  EXPECT_TRUE(executors_[0]->waits_before_steps());
  run_ = Prepare(schedule::ResultsPlace::kEnd);
  Connect();
  EXPECT_FALSE(executors_[0]->waits_before_steps());
  transports_[0]->Lose(Message::Kind::kResults, 2);
  Step(1);
  EXPECT_EQ(executors_[0]->updates(), Executor::Updates::kNone);
}

}  // namespace
}  // namespace stagecoach::engine
