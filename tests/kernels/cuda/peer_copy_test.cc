#include "kernels/peer_copy.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device.h"
#include "tests/kernels/cuda/backend_fixture.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::kernels::peer_copy_test {
namespace {

using ::testing::ElementsAre;

// The source and the destination GPU.
struct Way {
  int from = 0, to = 0;
};

class CudaHandoverTest : public CudaBackendTest, public ::testing::WithParamInterface<Way> {
 protected:
  void SetUp() override {
    CudaBackendTest::SetUp();
    const int needed = std::max(GetParam().from, GetParam().to) + 1;
    if (NumGpus() < needed) GTEST_SKIP() << "needs " << needed << " GPUs";
  }
};

INSTANTIATE_TEST_SUITE_P(Ways, CudaHandoverTest, ::testing::Values(Way{0, 0}, Way{0, 1}, Way{3, 1}),
                         [](const ::testing::TestParamInfo<Way>& way) {
                           return absl::StrCat("Gpu", way.param.from, "To", way.param.to);
                         });

// Passes one message, issued from the single thread of a test.
absl::Status Pass(Device& sender, Device& receiver, PeerCopy& peer_copy, const Buffer& from,
                  const Buffer& to) {
  RETURN_IF_ERROR(RunJob(sender, [&](Stream&) { return peer_copy.SenderReady(); }));
  RETURN_IF_ERROR(RunJob(receiver, [&](Stream&) -> absl::Status {
    RETURN_IF_ERROR(peer_copy.ReceiverReady());
    RETURN_IF_ERROR(peer_copy.Copy(to.data(), from.data(), from.bytes()));
    return peer_copy.ReceiverContinues();
  }));
  return RunJob(sender, [&](Stream&) { return peer_copy.SenderContinues(); });
}

TEST_P(CudaHandoverTest, CarriesAMessage) {
  const auto sender = CreateDevice(GetParam().from), receiver = CreateDevice(GetParam().to);
  ASSERT_OK_AND_ASSIGN(const Buffer from, sender->Allocate(12));
  ASSERT_OK_AND_ASSIGN(const Buffer to, receiver->Allocate(12));
  ASSERT_OK_AND_ASSIGN(const auto peer_copy, receiver->CreatePeerCopy(*sender));
  ASSERT_OK(Write(*sender, from, {1, 2, 3}));
  ASSERT_OK(Pass(*sender, *receiver, *peer_copy, from, to));
  ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> values, Read(*receiver, to));
  EXPECT_THAT(values, ElementsAre(1, 2, 3));
}

// Nothing waits until all messages are on their way. Each of them is in `from` only between two
// copies of the sender, and in `to` only between two of the receiver.
TEST_P(CudaHandoverTest, CopiesBetweenWhatComesBeforeAndAfterIt) {
  constexpr int kMessages = 12;
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    StartMachine({.seed = seed, .delay = 0.7});
    const auto sender = CreateDevice(GetParam().from), receiver = CreateDevice(GetParam().to);
    ASSERT_OK_AND_ASSIGN(const Buffer messages, sender->Allocate(kMessages * 4));
    ASSERT_OK_AND_ASSIGN(const Buffer from, sender->Allocate(4));
    ASSERT_OK_AND_ASSIGN(const Buffer to, receiver->Allocate(4));
    ASSERT_OK_AND_ASSIGN(const Buffer results, receiver->Allocate(kMessages * 4));
    ASSERT_OK_AND_ASSIGN(const auto peer_copy, receiver->CreatePeerCopy(*sender));
    std::vector<int32_t> sent;
    for (int32_t i = 0; i < kMessages; ++i) sent.push_back(100 + i);
    ASSERT_OK(Write(*sender, messages, sent));
    for (int i = 0; i < kMessages; ++i) {
      ASSERT_OK(RunJob(*sender, [&](Stream& stream) {
        return stream.Copy(from.data(), messages.data() + 4 * i, 4);
      }));
      ASSERT_OK(Pass(*sender, *receiver, *peer_copy, from, to));
      ASSERT_OK(RunJob(*receiver, [&](Stream& stream) {
        return stream.Copy(results.data() + 4 * i, to.data(), 4);
      }));
    }
    ASSERT_OK_AND_ASSIGN(const std::vector<int32_t> received, Read(*receiver, results));
    EXPECT_EQ(received, sent) << "seed " << seed;
    ASSERT_OK(FinishStream(*sender));
  }
}

TEST_P(CudaHandoverTest, WaitsForTheSendersWork) {
  const auto sender = CreateDevice(GetParam().from), receiver = CreateDevice(GetParam().to);
  ASSERT_OK_AND_ASSIGN(const Buffer from, sender->Allocate(4));
  ASSERT_OK_AND_ASSIGN(const Buffer to, receiver->Allocate(4));
  ASSERT_OK_AND_ASSIGN(const auto peer_copy, receiver->CreatePeerCopy(*sender));
  Roadblock roadblock(*sender);
  ASSERT_OK(Pass(*sender, *receiver, *peer_copy, from, to));
  EXPECT_THAT(RunJob(*receiver,
                     [](Stream& stream) {
                       return stream.Finish(base::Deadline::After(absl::Milliseconds(20)),
                                            [] { return absl::OkStatus(); });
                     }),
              testing::StatusIs(absl::StatusCode::kDeadlineExceeded));
  roadblock.Lift();
  EXPECT_OK(FinishStream(*receiver));
  EXPECT_OK(FinishStream(*sender));
}

TEST_P(CudaHandoverTest, WaitsForTheReceiversWork) {
  const auto sender = CreateDevice(GetParam().from), receiver = CreateDevice(GetParam().to);
  ASSERT_OK_AND_ASSIGN(const Buffer from, sender->Allocate(4));
  ASSERT_OK_AND_ASSIGN(const Buffer to, receiver->Allocate(4));
  ASSERT_OK_AND_ASSIGN(const auto peer_copy, receiver->CreatePeerCopy(*sender));
  Roadblock roadblock(*receiver);
  ASSERT_OK(Pass(*sender, *receiver, *peer_copy, from, to));
  EXPECT_THAT(RunJob(*sender,
                     [](Stream& stream) {
                       return stream.Finish(base::Deadline::After(absl::Milliseconds(20)),
                                            [] { return absl::OkStatus(); });
                     }),
              testing::StatusIs(absl::StatusCode::kDeadlineExceeded));
  roadblock.Lift();
  EXPECT_OK(FinishStream(*sender));
  EXPECT_OK(FinishStream(*receiver));
}

TEST_P(CudaHandoverTest, TellsWhenTheCopyWasDone) {
  const auto sender = CreateDevice(GetParam().from), receiver = CreateDevice(GetParam().to);
  ASSERT_OK_AND_ASSIGN(const Buffer from, sender->Allocate(4));
  ASSERT_OK_AND_ASSIGN(const Buffer to, receiver->Allocate(4));
  ASSERT_OK_AND_ASSIGN(const auto peer_copy, receiver->CreatePeerCopy(*sender));
  ASSERT_OK_AND_ASSIGN(const auto timeline, receiver->CreateTimeline(2));
  ASSERT_OK(RunJob(*receiver, [&](Stream&) { return timeline->Mark(0); }));
  ASSERT_OK(Pass(*sender, *receiver, *peer_copy, from, to));
  ASSERT_OK(RunJob(*receiver, [&](Stream&) { return timeline->Mark(1); }));
  ASSERT_OK(FinishStream(*receiver));
  ASSERT_OK_AND_ASSIGN(const auto before, timeline->At(0));
  ASSERT_OK_AND_ASSIGN(const auto after, timeline->At(1));
  ASSERT_OK_AND_ASSIGN(const auto done, peer_copy->DoneAt());
  // Both are on one GPU and measured from the same event, so they differ only by a float's
  // rounding.
  constexpr std::chrono::microseconds kRounding{10};
  EXPECT_GE(done, before - kRounding);
  EXPECT_LE(done, after + kRounding);
  ASSERT_OK(FinishStream(*sender));
}

using CudaHandoverFailureTest = CudaBackendTest;

TEST_F(CudaHandoverFailureTest, EveryFailureIsClean) {
  if (!testing::cuda::IsSimulated()) GTEST_SKIP() << "nothing fails on purpose";
  CudaBackend& backend = Backend();
  const Scenario scenario = [&](World& world) -> absl::Status {
    for (int gpu = 0; gpu < 2; ++gpu) {
      ASSIGN_OR_RETURN(std::unique_ptr<Device> device, backend.CreateDevice({.gpu = gpu}));
      world.devices.push_back(std::move(device));
      ASSIGN_OR_RETURN(Buffer buffer, world.devices.back()->Allocate(64));
      world.buffers.push_back(std::move(buffer));
    }
    Device &sender = *world.devices[0], &receiver = *world.devices[1];
    ASSIGN_OR_RETURN(std::unique_ptr<PeerCopy> peer_copy, receiver.CreatePeerCopy(sender));
    world.peer_copies.push_back(std::move(peer_copy));
    RETURN_IF_ERROR(
        Pass(sender, receiver, *world.peer_copies[0], world.buffers[0], world.buffers[1]));
    RETURN_IF_ERROR(FinishStream(receiver));
    RETURN_IF_ERROR(world.peer_copies[0]->DoneAt().status());
    return FinishStream(sender);
  };
  ExpectEveryFailureIsClean({.gpus = 2}, scenario);
  ExpectEveryAsynchronousFailureIsClean({.gpus = 2}, scenario);
}

}  // namespace
}  // namespace stagecoach::kernels::peer_copy_test
