#ifndef STAGECOACH_TESTS_ENGINE_COMM_IN_PROCESS_RANKS_H_
#define STAGECOACH_TESTS_ENGINE_COMM_IN_PROCESS_RANKS_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/deadline.h"
#include "engine/comm/collectives.h"
#include "engine/comm/transport.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

// Ranks that are threads of a test.
namespace stagecoach::engine {

using Transports = std::vector<std::unique_ptr<Transport>>;

inline kernels::Tensor View(std::vector<float>& values) {
  return kernels::Float32(values.data(), kernels::Shape{static_cast<int64_t>(values.size())});
}

// A deadline for waits that should succeed: long enough for the slowest machine.
inline base::Deadline Long() { return base::Deadline::After(absl::Minutes(4)); }
// A deadline for waits that should fail.
inline base::Deadline Short() { return base::Deadline::After(absl::Milliseconds(20)); }

inline kernels::Device& DeviceOf(int rank) {
  static std::vector<std::unique_ptr<kernels::Device>> devices;
  while (devices.size() <= static_cast<size_t>(rank)) {
    devices.push_back(*kernels::CreateCpuDevice({.index = static_cast<int>(devices.size())}));
  }
  return *devices[static_cast<size_t>(rank)];
}

inline Transports Connect(int ranks, int max_outstanding = 1) {
  InProcessOptions options = {.max_outstanding = max_outstanding};
  for (int rank = 0; rank < ranks; ++rank) options.devices.push_back(&DeviceOf(rank));
  return CreateInProcessTransports(options).value();
}

inline std::vector<Rank> AllRanks(int ranks) {
  std::vector<Rank> all;
  for (int rank = 0; rank < ranks; ++rank) all.emplace_back(rank);
  return all;
}

// AllGather of doubles in host memory.
inline absl::Status Gather(Transport& own, const std::vector<double>& mine,
                           std::vector<double>& all, base::Deadline deadline) {
  const auto count = static_cast<int64_t>(mine.size());
  std::vector<double> copy = mine;
  return AllGather(
      own, AllRanks(own.ranks()), DeviceOf(own.rank().value()).stream(), Message::Kind::kNorms,
      {copy.data(), kernels::DType::kFloat64, kernels::Shape{count}},
      {all.data(), kernels::DType::kFloat64, kernels::Shape{own.ranks(), count}}, deadline);
}

// Runs `work` for every rank, each in a thread of its own.
inline std::vector<absl::Status> OnThreads(Transports& ranks,
                                           absl::FunctionRef<absl::Status(Transport&)> work) {
  std::vector<absl::Status> statuses(ranks.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    threads.emplace_back([&, rank] { statuses[rank] = work(*ranks[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

}  // namespace stagecoach::engine

#endif  // STAGECOACH_TESTS_ENGINE_COMM_IN_PROCESS_RANKS_H_
