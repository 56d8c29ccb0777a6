#include "engine/runtime/reduction.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "engine/comm/transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "partition/cost/layer_cost.h"
#include "partition/cost/replication.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tree_sum.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::RandomNormal;
using ::stagecoach::testing::StatusIs;
using ::stagecoach::testing::TreeSum;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::unique_ptr<kernels::Device> MakeCpu() { return kernels::CreateCpuDevice({}).value(); }

// The contents of a group for one peer.
struct Exchanged {
  int sends = 0, receives = 0;
  friend bool operator==(const Exchanged&, const Exchanged&) = default;
};

// Wraps another transport and counts its groups: flushes of something.
class Counting final : public Transport {
 public:
  explicit Counting(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int groups() const { return groups_; }
  int most_groups() const { return most_groups_; }  // between two restarts
  // Returns the groups that hold anything for the peer.
  const std::vector<Exchanged>& exchanged(int peer) { return exchanged_[peer]; }

  Rank rank() const override { return inner_->rank(); }
  int ranks() const override { return inner_->ranks(); }
  bool occupies_gpu() const override { return true; }  // so that the order matters
  absl::StatusOr<Ticket> PostSend(Rank to, const Message& message,
                                  const kernels::Tensor& tensor) override {
    has_posted_ = true;
    ++group_[to.value()].sends;
    CountSend(tensor);
    return inner_->PostSend(to, message, tensor);
  }
  absl::StatusOr<Ticket> PostReceive(Rank from, const Message& message,
                                     const kernels::Tensor& tensor) override {
    has_posted_ = true;
    ++group_[from.value()].receives;
    return inner_->PostReceive(from, message, tensor);
  }
  absl::Status Flush() override {
    if (std::exchange(has_posted_, false)) {
      ++groups_;
      most_groups_ = std::max(most_groups_, ++since_restart_);
      for (const auto& [peer, exchanged] : group_) exchanged_[peer].push_back(exchanged);
      group_.clear();
    }
    return inner_->Flush();
  }
  absl::Status Wait(const Ticket& ticket, base::Deadline deadline) override {
    EXPECT_FALSE(has_posted_) << "a wait for a group that has not been started";
    return inner_->Wait(ticket, deadline);
  }
  absl::StatusOr<std::chrono::steady_clock::time_point> DeliveredAt(const Ticket& ticket) override {
    return inner_->DeliveredAt(ticket);
  }
  void Restart() override {
    since_restart_ = 0;
    inner_->Restart();
  }
  absl::Status Poll() override { return inner_->Poll(); }
  void Abort(const absl::Status& reason) override { inner_->Abort(reason); }

 private:
  const std::unique_ptr<Transport> inner_;
  bool has_posted_ = false;
  int groups_ = 0, since_restart_ = 0, most_groups_ = 0;
  std::map<int, Exchanged> group_;  // the group being collected, by peer
  std::map<int, std::vector<Exchanged>> exchanged_;
};

constexpr int64_t kPartBytes = 16384;

// Replicas of a rank that has one stage for each of the sizes, in bytes.
class Replicas {
 public:
  Replicas(int count, std::vector<int64_t> sizes, absl::Duration deadline = absl::Minutes(4))
      : Replicas({.replicas = count, .gradient_blocks = count, .part_bytes = kPartBytes},
                 std::move(sizes), deadline) {}
  Replicas(const partition::Replication& replication, std::vector<int64_t> sizes,
           absl::Duration deadline = absl::Minutes(4))
      : members_(static_cast<size_t>(replication.replicas)), sizes_(std::move(sizes)) {
    std::vector<kernels::Device*> beside;
    for (Member& member : members_) {
      member.device = MakeCpu();
      member.beside = MakeCpu();
      member.alone =
          std::move(CreateInProcessTransports({.devices = {member.device.get()}}).value()[0]);
      beside.push_back(member.beside.get());
    }
    std::vector<std::unique_ptr<Transport>> transports =
        CreateInProcessTransports(
            {.devices = beside, .max_outstanding = Reduction::MostOutstanding(replication)})
            .value();
    for (std::unique_ptr<Transport>& transport : transports) {
      transports_.push_back(std::make_unique<Counting>(std::move(transport)));
    }
    for (size_t i = 0; i < members_.size(); ++i) {
      Member& member = members_[i];
      Reduction::Options options = {.device = member.device.get(),
                                    .beside = member.beside.get(),
                                    .replication = replication,
                                    .replicas = transports_[i].get(),
                                    .deadline = deadline,
                                    .tasks = {}};
      int64_t most_bytes = 0;
      for (size_t stage = 0; stage < sizes_.size(); ++stage) {
        const int64_t elements = sizes_[stage] / 4;
        // The sums of all subtrees, one after the other.
        member.gradients.emplace_back(
            static_cast<size_t>(elements * partition::CountSums(replication).most));
        const auto gradients =
            kernels::Float32(member.gradients.back().data(), kernels::Shape{elements});
        options.tasks.push_back({.stage = StageId(static_cast<int32_t>(stage)),
                                 .added = gradients,
                                 .gathered = gradients});
        most_bytes = std::max(most_bytes, partition::ReductionBytes(sizes_[stage], replication));
      }
      member.received.resize(static_cast<size_t>(most_bytes));
      options.received = member.received.data();
      member.reduction = Reduction::Create(std::move(options)).value();
    }
  }

  std::vector<float>& gradients(size_t replica, size_t stage) {
    return members_[replica].gradients[stage];
  }
  Reduction& reduction(size_t replica) { return *members_[replica].reduction; }
  Transport& alone(size_t replica) { return *members_[replica].alone; }
  Counting& transport(size_t replica) { return *transports_[replica]; }

  // Runs one step of a replica: all sums. `started` is called after each start.
  absl::Status Sum(
      size_t replica,
      const std::function<absl::Status()>& started = [] { return absl::OkStatus(); }) {
    Member& member = members_[replica];
    absl::Status status;
    member.device->stream().Run([&] {
      for (size_t stage = 0; stage < sizes_.size() && status.ok(); ++stage) {
        status = member.reduction->Start({});
        if (status.ok()) status = started();
      }
      if (status.ok()) status = member.reduction->AwaitAll(*member.alone);
    });
    return status;
  }
  std::vector<absl::Status> SumAll() {
    std::vector<absl::Status> statuses(members_.size());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < members_.size(); ++i) {
      threads.emplace_back([this, i, &statuses] { statuses[i] = Sum(i); });
    }
    for (std::thread& thread : threads) thread.join();
    return statuses;
  }

 private:
  struct Member {
    std::unique_ptr<kernels::Device> device, beside;
    std::unique_ptr<Transport> alone;
    std::vector<std::vector<float>> gradients;
    std::vector<std::byte> received;
    std::unique_ptr<Reduction> reduction;
  };
  std::vector<std::unique_ptr<Counting>> transports_;
  std::vector<Member> members_;
  const std::vector<int64_t> sizes_;
};

// Returns the bytes that all replicas send for `bytes` of gradients.
int64_t SentBytesOf(int64_t bytes, const partition::Replication& replication) {
  int64_t sent_bytes = (replication.replicas - 1) * bytes;
  for (int replica = 0; replica < replication.replicas; ++replica) {
    int64_t others_bytes = bytes;
    for (int64_t part = 0; part < partition::ReductionParts(bytes, replication); ++part) {
      others_bytes -= partition::ShardOf(bytes, part, replica, replication).bytes();
    }
    sent_bytes += std::ssize(partition::SubtreesOf(replica, replication)) * others_bytes;
  }
  return sent_bytes;
}

// Each sum passes through as many roundings as the tree has levels: four, of 16 blocks.
void ExpectNearTheExactSum(absl::Span<const float> sums,
                           const std::vector<std::vector<float>>& values) {
  for (size_t k = 0; k < sums.size(); ++k) {
    double exact = 0, size = 0;
    for (const std::vector<float>& own : values) {
      exact += double{own[k]};
      size += std::fabs(double{own[k]});
    }
    ASSERT_NEAR(sums[k], exact, 4.0 * std::numeric_limits<float>::epsilon() / 2 * size) << k;
  }
}

// The sizes make no part, one that is too small for all replicas, one, and several; the bits do not
// depend on the division into parts.
TEST(Reduction, AddsInTheTreeOverAllBlocks) {
  const std::vector<int64_t> sizes = {64, kPartBytes, 0, 3 * kPartBytes + 192, 448};
  struct Case {
    int replicas, blocks;
    int64_t part_bytes = kPartBytes;
  };
  for (const Case& own :
       {Case{2, 2}, Case{4, 4}, Case{8, 8}, Case{3, 3}, Case{5, 5}, Case{6, 6}, Case{2, 6},
        Case{3, 6}, Case{4, 12}, Case{3, 15}, Case{2, 2, partition::kTensorAlignment},
        Case{2, 6, partition::kTensorAlignment}, Case{4, 4, 2 * kPartBytes},
        Case{4, 4, 8 * kPartBytes}}) {
    const auto& [count, blocks, part_bytes] = own;
    const partition::Replication replication = {
        .replicas = count, .gradient_blocks = blocks, .part_bytes = part_bytes};
    Replicas replicas(replication, sizes);
    int64_t shared_bytes = 0;  // the stages that all send in one step
    for (const int64_t bytes : sizes) shared_bytes += SentBytesOf(bytes, replication);
    for (uint64_t step = 0; step < 2; ++step) {
      std::vector<std::vector<float>> expected;
      for (size_t stage = 0; stage < sizes.size(); ++stage) {
        std::vector<std::vector<float>> values;
        for (int block = 0; block < blocks; ++block) {
          values.push_back(RandomNormal(sizes[stage] / 4,
                                        100 * step + 20 * stage + static_cast<uint64_t>(block)));
        }
        expected.push_back(TreeSum(values));
        ExpectNearTheExactSum(expected.back(), values);
        for (int i = 0; i < count; ++i) {
          auto to = replicas.gradients(static_cast<size_t>(i), stage).begin();
          for (const partition::BlockRange& subtree : partition::SubtreesOf(i, replication)) {
            const std::vector<float> sum = TreeSum(absl::MakeConstSpan(values).subspan(
                static_cast<size_t>(subtree.first), static_cast<size_t>(subtree.count)));
            to = std::copy(sum.begin(), sum.end(), to);
          }
        }
      }
      for (const absl::Status& status : replicas.SumAll()) EXPECT_OK(status);
      int64_t sent_bytes = 0;
      for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
        for (size_t stage = 0; stage < sizes.size(); ++stage) {
          const std::vector<float>& sums = replicas.gradients(i, stage);
          EXPECT_TRUE(std::equal(expected[stage].begin(), expected[stage].end(), sums.begin()))
              << "replica " << i << " of " << count << ", " << blocks << " blocks, stage " << stage
              << ", parts of " << part_bytes << " bytes";
        }
        sent_bytes += replicas.transport(i).sent_bytes();
      }
      EXPECT_EQ(sent_bytes, static_cast<int64_t>(step + 1) * shared_bytes);
    }
  }
}

// The sums of a part travel with the addends of the part after the next, because a group is
// expensive.
TEST(Reduction, TakesAGroupForEachPartAndOneMoreForTheFirstTwo) {
  Replicas replicas(4, {5 * kPartBytes, 64, 0, 2 * kPartBytes});
  for (const absl::Status& status : replicas.SumAll()) EXPECT_OK(status);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(replicas.transport(i).groups(), (5 + 2) + (1 + 1) + (2 + 2)) << "replica " << i;
  }
}

TEST(Reduction, SaysWhenAllThatWasStartedHasBeenFlushed) {
  Replicas replicas(2, {3 * kPartBytes, 0, 64});
  const std::vector<int> groups = {5, 5, 7};  // after each start
  for (int step = 0; step < 2; ++step) {
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        size_t stage = 0;
        EXPECT_OK(replicas.Sum(i, [&]() -> absl::Status {
          RETURN_IF_ERROR(replicas.reduction(i).AwaitFlushes(replicas.alone(i)));
          EXPECT_EQ(replicas.transport(i).groups(), 7 * step + groups[stage]) << stage;
          ++stage;
          return absl::OkStatus();
        }));
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Reduction, AWaitForFlushesEndsWithTheErrorOfAnother) {
  Replicas replicas(2, {3 * kPartBytes});
  std::thread aborting([&] { replicas.transport(1).Abort(absl::DataLossError("cut")); });
  EXPECT_THAT(
      replicas.Sum(0, [&] { return replicas.reduction(0).AwaitFlushes(replicas.alone(0)); }),
      StatusIs(absl::StatusCode::kDataLoss, "cut"));
  aborting.join();
}

// A communicator requires this (kernels/communicator.h), even of parts that are too small for all.
TEST(Reduction, WhatTwoReplicasExchangeInAGroupOfOneIsInOneOfTheOther) {
  constexpr int kReplicas = 3;  // with 2, 3 and 2 sums
  Replicas replicas({.replicas = kReplicas, .gradient_blocks = 15, .part_bytes = kPartBytes},
                    {64, 2 * kPartBytes + 64, kPartBytes, 4 * kPartBytes + 448});
  for (const absl::Status& status : replicas.SumAll()) EXPECT_OK(status);
  for (int own = 0; own < kReplicas; ++own) {
    for (int other = own + 1; other < kReplicas; ++other) {
      std::vector<Exchanged> theirs = replicas.transport(static_cast<size_t>(other)).exchanged(own);
      for (Exchanged& exchanged : theirs) std::swap(exchanged.sends, exchanged.receives);
      EXPECT_EQ(replicas.transport(static_cast<size_t>(own)).exchanged(other), theirs)
          << "replicas " << own << " and " << other;
    }
  }
}

TEST(Reduction, RestartsBeforeItTakesMoreGroupsThanAreAllowed) {
  constexpr int64_t kParts = Reduction::kMostGroups;
  Replicas replicas(2, {kParts * kPartBytes});
  for (size_t i = 0; i < 2; ++i) {
    std::vector<float>& gradients = replicas.gradients(i, 0);
    std::fill(gradients.begin(), gradients.end(), static_cast<float>(i + 1));
  }
  for (const absl::Status& status : replicas.SumAll()) EXPECT_OK(status);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(replicas.transport(i).most_groups(), Reduction::kMostGroups) << "replica " << i;
    const std::vector<float>& sums = replicas.gradients(i, 0);
    EXPECT_EQ(std::count(sums.begin(), sums.end(), 3.0F), std::ssize(sums)) << "replica " << i;
  }
}

TEST(Reduction, AReplicaThatDoesNotComeEndsTheWaitOfTheOthers) {
  Replicas replicas(2, {256}, /*deadline=*/absl::Milliseconds(50));
  EXPECT_THAT(replicas.Sum(0),
              StatusIs(absl::StatusCode::kDeadlineExceeded,
                       AllOf(HasSubstr("stage 0 REDUCE"), HasSubstr("rank 0 timed out waiting"))));
  EXPECT_THAT(replicas.Sum(0), StatusIs(absl::StatusCode::kDeadlineExceeded));  // from then on
}

TEST(Reduction, AnAbortEndsTheWaitOfAll) {
  Replicas replicas(2, {256, 256});
  std::thread aborting([&] { replicas.transport(1).Abort(absl::DataLossError("cut")); });
  EXPECT_THAT(replicas.Sum(0), StatusIs(absl::StatusCode::kDataLoss, "cut"));
  aborting.join();
}

}  // namespace
}  // namespace stagecoach::engine
