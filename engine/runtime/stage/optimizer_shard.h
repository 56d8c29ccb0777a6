#ifndef STAGECOACH_ENGINE_RUNTIME_STAGE_OPTIMIZER_SHARD_H_
#define STAGECOACH_ENGINE_RUNTIME_STAGE_OPTIMIZER_SHARD_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/nn/parameter_table.h"
#include "engine/runtime/stage/optimizer.h"
#include "engine/runtime/stage/trained_piece.h"
#include "kernels/device.h"
#include "kernels/ops/optimizer.h"
#include "kernels/tensor.h"
#include "partition/cost/replication.h"

namespace stagecoach::engine {

// The optimizer of one replica's shards of a stage's parameters, one shard in each part of them
// (partition::ShardOf), if replicas shard the optimizer: it has the state of these alone. Updates
// are elementwise, so all shards together compute the same bits as one optimizer.
class OptimizerShard {
 public:
  struct Options {
    kernels::Device* device = nullptr;  // that updates and has the memory
    Optimizer optimizer;
    absl::Span<const ModelParameter> parameters;  // of the stage
    // Tensors of the parameters, without states: gradients in the order and at the places that they
    // have in `gradients`; those of values are alike.
    absl::Span<const kernels::ParameterTensors> tensors;
    kernels::Tensor gradients;    // (n) float32
    std::byte* states = nullptr;  // partition::OptimizerBytes for states, which are 0
    partition::Replication replication;
    int replica = 0;
    TensorPart part;
  };
  static absl::StatusOr<std::unique_ptr<OptimizerShard>> Create(const Options& options);

  // The states of the shard.
  const std::vector<TrainedPiece>& trained_pieces() const { return trained_; }

  // Sets what the following updates are to do.
  void Begin(const UpdateStep& step) { step_ = step; }
  // Updates the shard of a part. A job of the device's stream, as is Finish.
  absl::Status UpdatePart(int64_t part);
  // Exchanges values and averages of the shard of a part (Optimizer::has_ema), instead of an
  // update.
  absl::Status SwapPart(int64_t part);
  // Sets the averages of all parts to their values. A job of the device's stream.
  absl::Status StartAverages() { return CopyToAverages(device_.stream(), pieces_); }
  // Brings the values into the form that layers read, once all parts have those of all replicas.
  absl::Status Finish();

 private:
  OptimizerShard(kernels::Device& device, const Optimizer& optimizer)
      : device_(device), optimizer_(optimizer) {}
  absl::Status CreateGroups(const Options& options);

  kernels::Device& device_;
  const Optimizer optimizer_;
  UpdateStep step_;
  std::vector<TrainedPiece> trained_;
  std::vector<kernels::ParameterTensors> pieces_;                // of all parts
  std::vector<std::unique_ptr<kernels::ParameterGroup>> parts_;  // the shard of each
  std::unique_ptr<kernels::ParameterGroup> all_;  // those of all replicas; null without rounding
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_RUNTIME_STAGE_OPTIMIZER_SHARD_H_
