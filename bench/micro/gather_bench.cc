// Measures what it costs to gather on one device: the gradients of all replicas, as DataParallel is
// usually built, compared with the direct exchange that the engine uses; and the outputs. Takes a
// few seconds.
//   build/release/bench/gather_bench
//   build/release/tools/stagecoach launch --processes 2 -- build/release/bench/gather_bench
// The second command runs each replica in a process of its own, and prints the part for outputs.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "bench/micro/median_seconds.h"
#include "engine/runtime/reduction.h"
#include "engine/stagecoach.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/ops/ops.h"
#include "partition/cost/replication.h"

namespace stagecoach::bench {
namespace {

using namespace engine;  // NOLINT: a standalone program

constexpr absl::Duration kDeadline = absl::Minutes(1);

template <typename T>
T Value(absl::StatusOr<T> result) {
  STAGECOACH_CHECK_OK(result);
  return *std::move(result);
}

// One replica's device and gradients.
struct Replica {
  std::unique_ptr<kernels::Device> device = kernels::CreateCpuDevice({}).value();
  std::unique_ptr<kernels::Device> beside = kernels::CreateCpuDevice({}).value();
  std::unique_ptr<Transport> alone =
      std::move(CreateInProcessTransports({.devices = {device.get()}}).value()[0]);
  std::unique_ptr<Transport> replicas;  // on `beside`
  kernels::Buffer gradients, received;
};

class Replicas {
 public:
  Replicas(int count, int64_t bytes)
      : replication_{count, /*gradient_blocks=*/count},
        bytes_(bytes),
        members_(static_cast<size_t>(count)) {
    std::vector<kernels::Device*> devices;
    for (Replica& member : members_) {
      member.gradients = Value(member.device->Allocate(bytes));
      member.received = Value(member.device->Allocate((count - 1) * bytes));
      devices.push_back(member.beside.get());
    }
    auto transports = Value(CreateInProcessTransports(
        {.devices = devices, .max_outstanding = Reduction::MostOutstanding(replication_)}));
    for (size_t i = 0; i < members_.size(); ++i) members_[i].replicas = std::move(transports[i]);
  }

  // All send to the first one, which adds and sends the sum to all.
  double SecondsByOne() {
    return MedianSeconds([&] {
      OnEach([&](Replica& own) {
        absl::Status status;
        own.beside->stream().Run([&] { status = SumByOne(own); });
        STAGECOACH_CHECK_OK(status);
      });
    });
  }

  // Each adds its share for all (engine/runtime/reduction.h).
  double SecondsByAll() {
    std::vector<std::unique_ptr<Reduction>> reductions;
    for (Replica& member : members_) {
      reductions.push_back(Value(Reduction::Create({.device = member.device.get(),
                                                    .beside = member.beside.get(),
                                                    .replication = replication_,
                                                    .replicas = member.replicas.get(),
                                                    .deadline = kDeadline,
                                                    .received = member.received.data(),
                                                    .tasks = {{.stage = StageId(0),
                                                               .added = Gradients(member),
                                                               .gathered = Gradients(member)}}})));
    }
    return MedianSeconds([&] {
      OnEach([&](Replica& own) {
        Reduction& reduction = *reductions[static_cast<size_t>(own.replicas->rank().value())];
        absl::Status status;
        own.device->stream().Run([&] {
          status = reduction.Start({});
          if (status.ok()) status = reduction.AwaitAll(*own.alone);
        });
        STAGECOACH_CHECK_OK(status);
      });
    });
  }

 private:
  template <typename F>
  void OnEach(F function) {
    std::vector<std::thread> threads;
    for (Replica& member : members_) threads.emplace_back([&] { function(member); });
    for (std::thread& thread : threads) thread.join();
  }

  kernels::Tensor Gradients(const Replica& own) const {
    return {own.gradients.data(), kernels::DType::kFloat32, Shape{bytes_ / 4}};
  }

  absl::Status SumByOne(Replica& own) {
    constexpr Message kAddend = {.kind = Message::Kind::kAddends};
    constexpr Message kSum = {.kind = Message::Kind::kSums};
    Transport& transport = *own.replicas;
    transport.Restart();
    const kernels::Tensor gradients = Gradients(own);
    const auto wait = [&](const Transport::Ticket& ticket) {
      return transport.Wait(ticket, base::Deadline::After(kDeadline));
    };
    if (transport.rank() != Rank(0)) {
      ASSIGN_OR_RETURN(const auto sent, transport.PostSend(Rank(0), kAddend, gradients));
      RETURN_IF_ERROR(wait(sent));
      ASSIGN_OR_RETURN(const auto received, transport.PostReceive(Rank(0), kSum, gradients));
      return wait(received);
    }
    std::vector<Transport::Ticket> tickets;
    std::vector<kernels::Tensor> addends;
    for (Rank other(1); other.value() < transport.ranks(); ++other) {
      addends.push_back(gradients);
      addends.back().data = own.received.data() + (other.value() - 1) * bytes_;
      ASSIGN_OR_RETURN(tickets.emplace_back(),
                       transport.PostReceive(other, kAddend, addends.back()));
    }
    for (size_t i = 0; i < tickets.size(); ++i) {
      RETURN_IF_ERROR(wait(tickets[i]));
      RETURN_IF_ERROR(own.beside->ops().elementwise().Add(own.beside->stream(), gradients,
                                                          addends[i], gradients));
    }
    for (Rank other(1); other.value() < transport.ranks(); ++other) {
      ASSIGN_OR_RETURN(tickets[static_cast<size_t>(other.value() - 1)],
                       transport.PostSend(other, kSum, gradients));
    }
    for (const Transport::Ticket& ticket : tickets) RETURN_IF_ERROR(wait(ticket));
    return absl::OkStatus();
  }

  const partition::Replication replication_;
  const int64_t bytes_;
  std::vector<Replica> members_;
};

void MeasureGradients() {
  constexpr int64_t kBytes = int64_t{64} << 20;
  std::printf(
      "sum of the gradients, 64 MiB a replica\n"
      "replicas   through the first: bytes, time   through each: bytes, time   ratio\n");
  for (const int count : {2, 4, 8}) {
    Replicas replicas(count, kBytes);
    const double one = replicas.SecondsByOne();
    const double all = replicas.SecondsByAll();
    // Counts bytes in and out.
    const int64_t bytes_of_one = 2 * (count - 1) * (kBytes >> 20);
    std::printf("%8d   %11ld MiB  %12.1f ms   %7ld MiB  %11.1f ms   %5.2f\n", count, bytes_of_one,
                1e3 * one, 2 * bytes_of_one / count, 1e3 * all, one / all);
  }
}

// A loss that costs nothing, so that an evaluation is the forward pass alone.
class NoLoss final : public Loss {
 public:
  absl::StatusOr<LossSpec> Prepare(const LossContext&) override { return LossSpec{}; }
  absl::Status Compute(const LossArgs& args) override {
    std::fill_n(args.result.f64(), 2, 0.0);
    return absl::OkStatus();
  }
};

void MeasureOutputs(Rendezvous* rendezvous) {
  constexpr int64_t kBatch = 256, kRows = 8 * kBatch, kFeatures = 512;
  const bool prints = rendezvous == nullptr || rendezvous->rank() == 0;
  const auto data =
      Value(LoadData({.spec = absl::StrCat("synthetic:", kRows, "x", kFeatures, "x2")}));
  if (prints) {
    std::printf(
        "outputs of %ld rows, batches of %ld over 2 replicas in %s\n"
        "outputs a row   gathered   forward passes   with gathering   gathering / forward\n",
        kRows, kBatch, rendezvous == nullptr ? "one process" : "two processes");
  }
  for (const int64_t outputs : {10, 1000, 10'000}) {
    const Model model = {.input = Shape{kFeatures},
                         .layers = {Linear(1024, Activation::kGelu),
                                    Linear(1024, Activation::kGelu), Linear(outputs)},
                         .loss = LossOf<NoLoss>()};
    const auto trainer =
        Value(rendezvous == nullptr ? DataParallel(model, 2, kBatch)
                                    : DistributedDataParallel(model, *rendezvous, kBatch));
    const double forward =
        MedianSeconds([&] { STAGECOACH_CHECK_OK(trainer->Evaluate(*data.train)); });
    const double predict = MedianSeconds([&] {
      STAGECOACH_CHECK_OK(
          trainer->Predict(*data.train, [](const Outputs&) { return absl::OkStatus(); }));
    });
    if (!prints) continue;
    std::printf("%13ld   %5.1f MB   %11.1f ms   %11.1f ms   %18.2f\n", outputs,
                static_cast<double>(4 * outputs * kRows) / 1e6, 1e3 * forward, 1e3 * predict,
                (predict - forward) / forward);
    std::fflush(stdout);
  }
}

void Run() {
  const auto launch = Value(FindLaunch());
  if (!launch.has_value()) {
    MeasureGradients();
    MeasureOutputs(nullptr);
    return;
  }
  const auto rendezvous = Value(ConnectRendezvous(*launch, kDeadline));
  STAGECOACH_CHECK(rendezvous->ranks() == 2, "start it in two processes");
  MeasureOutputs(rendezvous.get());
}

}  // namespace
}  // namespace stagecoach::bench

int main() { stagecoach::bench::Run(); }
