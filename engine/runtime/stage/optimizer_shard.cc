#include "engine/runtime/stage/optimizer_shard.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/status_macros.h"
#include "engine/runtime/stage/fill_tensors.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

using kernels::ParameterTensors;
using kernels::Tensor;

Tensor ElementsOf(const Tensor& whole, int64_t first, int64_t count) {
  return {static_cast<std::byte*>(whole.data) + first * SizeOf(whole.dtype), whole.dtype,
          kernels::Shape{count}};
}

// Returns the pieces of parameters that lie in the range of `gradients`. `states`: those of that
// range, one after the other, `state_bytes` apart; they are added to `trained`.
std::vector<ParameterTensors> PiecesIn(const partition::ByteRange& range,
                                       const OptimizerShard::Options& options, std::byte* states,
                                       int64_t state_bytes, std::vector<TrainedPiece>& trained) {
  std::vector<ParameterTensors> pieces;
  for (size_t i = 0; i < options.tensors.size(); ++i) {
    const ModelParameter& parameter = options.parameters[i];
    const ParameterTensors& tensors = options.tensors[i];
    const Tensor& gradient = tensors.gradient;
    if (parameter.update.is_frozen()) continue;
    const int64_t offset = static_cast<const std::byte*>(gradient.data) -
                           static_cast<const std::byte*>(options.gradients.data);
    const int64_t begin = std::max(range.begin, offset);
    const int64_t end = std::min(range.end, offset + gradient.bytes());
    if (begin >= end) continue;
    const int64_t first = (begin - offset) / SizeOf(gradient.dtype);
    const int64_t count = (end - begin) / SizeOf(gradient.dtype);
    ParameterTensors& piece = pieces.emplace_back();
    piece.decays = tensors.decays;
    piece.rate_factor = tensors.rate_factor;
    piece.weight_decay = tensors.weight_decay;
    piece.average = tensors.average;
    piece.value = ElementsOf(tensors.value, first, count);
    piece.gradient = ElementsOf(gradient, first, count);
    if (!tensors.working.empty()) piece.working = ElementsOf(tensors.working, first, count);
    // A moving average leaves a gap among the states, which have the places of the gradients.
    const int own_states = piece.average.has_value() ? 0 : options.optimizer.states();
    for (int state = 0; state < own_states; ++state) {
      Tensor& tensor = StateOf(options.optimizer, piece, state);
      tensor = {states + state * state_bytes + (begin - range.begin), gradient.dtype,
                kernels::Shape{count}};
      trained.push_back({.parameter = parameter.original(),
                         .is_copy = parameter.is_copy(),
                         .state = state,
                         .first = FirstHeld(parameter, options.part, gradient) + first,
                         .tensor = tensor});
    }
  }
  return pieces;
}

}  // namespace

absl::StatusOr<std::unique_ptr<OptimizerShard>> OptimizerShard::Create(const Options& options) {
  std::unique_ptr<OptimizerShard> shard(new OptimizerShard(*options.device, options.optimizer));
  absl::Status status;
  options.device->stream().Run([&] { status = shard->CreateGroups(options); });
  RETURN_IF_ERROR(status);
  return shard;
}

absl::Status OptimizerShard::CreateGroups(const Options& options) {
  kernels::OptimizerOps& ops = device_.ops().optimizer();
  const int64_t bytes = options.gradients.bytes();
  std::byte* states = options.states;
  for (int64_t part = 0; part < partition::ReductionParts(bytes, options.replication); ++part) {
    const auto range = partition::ShardOf(bytes, part, options.replica, options.replication);
    const std::vector<ParameterTensors> pieces =
        PiecesIn(range, options, states, range.bytes(), trained_);
    ASSIGN_OR_RETURN(parts_.emplace_back(), ops.CreateGroup(device_.stream(), pieces));
    pieces_.insert(pieces_.end(), pieces.begin(), pieces.end());
    states += options.optimizer.states() * range.bytes();
  }
  if (!device_.memory_is_host()) RETURN_IF_ERROR(WarmUpUpdate(optimizer_, device_, pieces_));
  const bool rounds =
      std::any_of(options.tensors.begin(), options.tensors.end(),
                  [](const ParameterTensors& tensors) { return !tensors.working.empty(); });
  if (!rounds) return absl::OkStatus();
  std::vector<ParameterTensors> trained;
  std::copy_if(options.tensors.begin(), options.tensors.end(), std::back_inserter(trained),
               [](const ParameterTensors& tensors) { return !tensors.gradient.empty(); });
  ASSIGN_OR_RETURN(all_, ops.CreateGroup(device_.stream(), trained));
  return absl::OkStatus();
}

absl::Status OptimizerShard::UpdatePart(int64_t part) {
  return UpdateParameters(optimizer_, step_, device_, *parts_[static_cast<size_t>(part)]);
}

absl::Status OptimizerShard::SwapPart(int64_t part) {
  return device_.ops().optimizer().SwapAverages(device_.stream(),
                                                *parts_[static_cast<size_t>(part)]);
}

absl::Status OptimizerShard::Finish() {
  if (all_ == nullptr) return absl::OkStatus();
  return device_.ops().optimizer().RoundParameters(device_.stream(), *all_);
}

}  // namespace stagecoach::engine
