#include "partition/plan/sent_bytes.h"

#include <algorithm>

#include "partition/cost/replication.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::partition {
namespace {

using schedule::Action;
using schedule::Op;

// The two halves of an exchange of `bytes` bytes, part by part: each replica sends the others their
// shards of its sums, and then its own shard to all others.
struct ExchangeHalves {
  int64_t scattered = 0;
  int64_t gathered = 0;
};

ExchangeHalves HalvesOf(int64_t bytes, int replica, const Replication& replication) {
  ExchangeHalves halves;
  const auto sums = static_cast<int64_t>(SubtreesOf(replica, replication).size());
  for (int64_t part = 0; part < ReductionParts(bytes, replication); ++part) {
    int64_t all = 0;
    for (int i = 0; i < replication.replicas; ++i) {
      all += ShardOf(bytes, part, i, replication).bytes();
    }
    const int64_t own = ShardOf(bytes, part, replica, replication).bytes();
    halves.scattered += sums * (all - own);
    halves.gathered += (replication.replicas - 1) * own;
  }
  return halves;
}

// Returns the bytes that a rank sends for a tie, whose two ranks send each other their sums.
int64_t BytesSentFor(const Tie& tie, const CompiledPlan& plan, schedule::Rank rank) {
  const auto rank_of = [&](int layer) {
    return plan.lowered->training.rank_of(schedule::StageId(plan.plan.stage_of(layer)));
  };
  const schedule::Rank first = rank_of(tie.layer), second = rank_of(tie.other_layer);
  return first != second && (rank == first || rank == second) ? tie.bytes : 0;
}

// Returns the first layer of a stage whose B is performed: the first stage skips frozen ones.
int FirstBackward(const Plan& plan, absl::Span<const LayerCost> layers, int stage) {
  if (stage > 0) return plan.first(stage);
  int last = plan.last(stage);
  while (last >= 0 && !layers[static_cast<size_t>(last)].skips_backward) --last;
  return last + 1;
}

// Returns the bytes that a compute action exchanges with those that perform it together.
int64_t ExchangedBytes(const Plan& plan, absl::Span<const LayerCost> layers, const Action& action) {
  const int stage = action.stage.value();
  const bool is_backward = action.op == Op::kBackward || action.op == Op::kBackwardInput;
  const bool is_weight = action.op == Op::kBackward || action.op == Op::kBackwardWeight;
  const int first_backward = FirstBackward(plan, layers, stage);
  int64_t bytes = 0;
  for (int i = plan.first(stage); i <= plan.last(stage); ++i) {
    const LayerCost& layer = layers[static_cast<size_t>(i)];
    if (action.op == Op::kForward) bytes += layer.forward_exchange.bytes;
    if (i < first_backward) continue;
    if (is_weight) bytes += layer.weight_exchange.bytes;
    if (!is_backward) continue;
    const bool again = std::binary_search(plan.recomputed.begin(), plan.recomputed.end(), i);
    if (again) bytes += layer.forward_exchange.bytes;
    bytes += layer.backward_exchange.bytes;
    // Nobody wants the gradient of the data, or of what is frozen.
    if (stage > 0 || i > first_backward) bytes += layer.input_gradient_exchange.bytes;
  }
  return bytes;
}

}  // namespace

SentBytes SentBytesOf(const CompiledPlan& plan, absl::Span<const LayerCost> layers,
                      absl::Span<const Tie> ties, schedule::Rank rank, int replica) {
  const schedule::Schedule& training = plan.lowered->training;
  const schedule::CollectiveMemory& collectives = plan.lowered->collectives;
  const Replication& replication = plan.plan.replication;
  SentBytes sent;
  for (const Action& action : training.list_of(rank)) {
    const int64_t others = schedule::IsCollective(action.op)
                               ? static_cast<int64_t>(training.group(action.group).ranks.size()) - 1
                               : 0;
    const auto memory = [&]() -> const schedule::StageMemory& {
      return plan.of(action.stage).memory;
    };
    const auto gradient_bytes = [&] {
      return memory().gradient_bytes / replication.gradient_copies();
    };
    if (plan.plan.tensor_parts > 1 && schedule::IsCompute(action.op)) {
      sent.to_parts += ExchangedBytes(plan.plan, layers, action);
    }
    switch (action.op) {
      case Op::kSendActivation:
        sent.to_ranks += memory().output_bytes;
        break;
      case Op::kSendGradient:
        sent.to_ranks += memory().input_gradient_bytes;
        break;
      case Op::kReduceGradients: {
        if (replication.reduction == ReductionKind::kRing) {
          sent.to_replicas += RingBytes(gradient_bytes(), replication.replicas);
          break;
        }
        const ExchangeHalves halves = HalvesOf(gradient_bytes(), replica, replication);
        sent.to_replicas += halves.scattered + halves.gathered;
        break;
      }
      case Op::kStep:
        // If updates do not wait, REDUCE has exchanged parameters in place of gradients.
        if (collectives.precede_updates() && replication.shards_optimizer) {
          sent.to_replicas += HalvesOf(gradient_bytes(), replica, replication).gathered;
        }
        break;
      case Op::kSumTies:
        for (const Tie& tie : ties) sent.to_ranks += BytesSentFor(tie, plan, rank);
        break;
      case Op::kExchangeNorms:
        sent.to_ranks += others * collectives.norm_bytes;
        sent.to_parts +=
            (plan.plan.tensor_parts - 1) * training.num_ranks() * collectives.norm_bytes;
        break;
      case Op::kShareResults: {
        const int64_t bytes = training.num_micro_batches * collectives.result_bytes;
        if (rank == training.rank_of(schedule::StageId(training.num_stages() - 1))) {
          sent.to_ranks += others * bytes;
        } else if (collectives.results_before_steps) {
          sent.to_ranks += others * schedule::kPresenceBytes;
        }
        sent.to_replicas += (replication.replicas - 1) * schedule::AlignBlock(bytes);
        break;
      }
      default:
        break;
    }
  }
  return sent;
}

}  // namespace stagecoach::partition
