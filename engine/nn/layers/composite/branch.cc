#include "engine/nn/layers/composite/branch.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "partition/cost/stage_memory.h"
#include "schedule/memory/memory_plan.h"

namespace stagecoach::engine {

Tensor Branch::Output(const LayerArgs& args, const Tensor& otherwise) const {
  if (!kept_output.has_value()) return otherwise;
  return {At(args.weight_stash, *kept_output), otherwise.dtype, otherwise.shape};
}

LayerArgs Branch::Args(const LayerArgs& args) const {
  LayerArgs own = args;
  own.parameters = args.parameters.subspan(first_parameter, parameters());
  if (!args.gradients.empty()) {
    own.gradients = args.gradients.subspan(first_parameter, parameters());
  }
  own.stash = At(args.stash, stash);
  own.weight_stash = At(args.weight_stash, weight_stash);
  own.gradient_stash = At(args.gradient_stash, gradient_stash);
  own.cache = At(args.cache, cache);
  return own;
}

void Branch::PlaceIn(partition::LayerMemory& memory, int64_t output_bytes) {
  const schedule::StageMemory& own = chain.memory();
  stash = std::exchange(memory.stash_bytes, memory.stash_bytes + own.stash_bytes);
  weight_stash =
      std::exchange(memory.weight_stash_bytes, memory.weight_stash_bytes + own.weight_stash_bytes);
  gradient_stash = std::exchange(memory.gradient_stash_bytes,
                                 memory.gradient_stash_bytes + own.gradient_stash_bytes);
  cache = std::exchange(memory.cache_bytes, memory.cache_bytes + chain.cache_bytes());
  if (own.output_last_use > LastUse::kForward) {
    kept_output = memory.weight_stash_bytes;
    memory.weight_stash_bytes += partition::AlignTensor(output_bytes);
  }
  memory.workspace_bytes = std::max(memory.workspace_bytes, own.workspace_bytes);
  memory.input_last_use = std::max(memory.input_last_use, own.input_last_use);
  memory.output_gradient_last_use =
      std::max(memory.output_gradient_last_use, own.output_gradient_last_use);
}

absl::StatusOr<Branch> PrepareBranch(absl::Span<const LayerFactory> layers, LayerContext context,
                                     int first_index, const std::string& prefix, LayerSpec& spec) {
  if (context.number_in_list >= 0) {
    absl::StrAppend(&context.parameter_prefix, std::exchange(context.number_in_list, -1), ".");
  }
  context.parameter_prefix += prefix;
  ASSIGN_OR_RETURN(Sequential chain, Sequential::Prepare(layers, context, first_index));
  // Seen from outside, the whole layer's two backward operations may be apart, wherever it is.
  chain.LayOut({.splits_backward = true}, {});
  Branch branch{.chain = std::move(chain), .first_parameter = spec.parameters.size()};
  for (int i = 0; i < branch.chain.size(); ++i) {
    const LayerSpec& inner = branch.chain.spec(i);
    absl::StrAppend(&spec.description, i == 0 ? "" : "; ", inner.description);
    for (ParameterSpec parameter : inner.parameters) {
      parameter.name = absl::StrCat(prefix, NameInList(branch.listed, inner, parameter.name));
      spec.parameters.push_back(std::move(parameter));
    }
    spec.has_attention = spec.has_attention || inner.has_attention;
    branch.aside_bytes = std::max(branch.aside_bytes, inner.aside_bytes);
    AddWork(inner.forward, spec.forward);
    AddWork(inner.backward_input, spec.backward_input);
    AddWork(inner.backward_weight, spec.backward_weight);
    AddWork(inner.backward_shared, spec.backward_shared);
    spec.forward_exchange += inner.forward_exchange;
    spec.backward_exchange += inner.backward_exchange;
    // What comes before in the branch wants the gradient in any case.
    (i == 0 ? spec.input_gradient_exchange : spec.backward_exchange) +=
        inner.input_gradient_exchange;
    spec.weight_exchange += inner.weight_exchange;
    branch.listed += inner.stands_for;
  }
  return branch;
}

}  // namespace stagecoach::engine
