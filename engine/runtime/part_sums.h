#ifndef STAGECOACH_ENGINE_RUNTIME_PART_SUMS_H_
#define STAGECOACH_ENGINE_RUNTIME_PART_SUMS_H_

#include <cstddef>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/comm/transport.h"
#include "engine/nn/layer.h"
#include "kernels/device.h"

namespace stagecoach::engine {

// Adds up tensors of the devices that perform a stage together, by messages between them: a
// reduce-scatter by recursive halving and an all-gather by recursive doubling (Thakur et al. 2005).
// In the first round neighbors add what they have, in the next those two apart, ...: the balanced
// binary tree. Each sends 2 (parts - 1) / parts of the tensor's bytes.
class TransportPartSums final : public PartSums {
 public:
  // Minimum of what the transport must allow (InProcessOptions::max_outstanding).
  static constexpr int kMostOutstanding = 4;
  // Returns the minimum of CommunicatorOptions::max_groups, where so many sums and an exchange of
  // norms come between two calls of Restart.
  static int MostGroups(int parts, int rounds);

  // `transport` connects the parts of a stage, in their order: a power of two. Both outlive it.
  TransportPartSums(kernels::Device& device, Transport& transport, absl::Duration deadline)
      : device_(device), transport_(transport), deadline_(deadline) {}

  // Sets what is called before each Flush: for another transport of the same GPU
  // (Transport::occupies_gpu).
  void BeforeFlush(std::function<absl::Status()> function) { before_flush_ = std::move(function); }

  absl::Status AddUp(kernels::Stream& stream, const Tensor& tensor, std::byte* scratch) override;
  // By recursive doubling.
  absl::Status Gather(kernels::Stream& stream, const Tensor& tensor) override;

 private:
  // Sends to another part, and receives from it, what is not empty.
  absl::Status Exchange(int partner, int round, const Tensor& sent, const Tensor& received);

  kernels::Device& device_;
  Transport& transport_;
  const absl::Duration deadline_;
  std::function<absl::Status()> before_flush_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_PART_SUMS_H_
