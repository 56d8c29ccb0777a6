#include "engine/train/fingerprint.h"

#include <cstddef>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/hash.h"

namespace stagecoach::engine {
namespace {

void Add(base::Hasher& hasher, absl::string_view text) {
  hasher.UpdateValue(text.size());
  hasher.Update(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

void Add(base::Hasher& hasher, const ParameterTable& parameters) {
  hasher.UpdateValue(parameters.size());
  for (const ModelParameter& parameter : parameters.all()) {
    Add(hasher, absl::StrCat(parameter.name, " ", parameter.shape.ToString()));
    hasher.UpdateValue(parameter.type);
    hasher.UpdateValue(parameter.init.kind);
    hasher.UpdateValue(parameter.init.a);
    hasher.UpdateValue(parameter.init.b);
    hasher.UpdateValue(parameter.random_stream);
    hasher.UpdateValue(parameter.decays);
  }
}

void Add(base::Hasher& hasher, const partition::Plan& plan, const schedule::Schedule& lowered) {
  hasher.UpdateValue(plan.micro_batch_rows);
  for (const int layer : plan.first_layer) hasher.UpdateValue(layer);
  for (int rank = 0; rank < lowered.num_ranks(); ++rank) {
    Add(hasher, absl::StrCat("rank ", rank));
    for (const schedule::Action& action : lowered.list_of(schedule::Rank(rank))) {
      Add(hasher, ToString(action));
    }
  }
}

void Add(base::Hasher& hasher, const Optimizer& optimizer) {
  hasher.UpdateValue(optimizer.kind);
  for (const float value : {optimizer.weight_decay, optimizer.beta1, optimizer.beta2,
                            optimizer.epsilon, optimizer.momentum, optimizer.clip_norm}) {
    hasher.UpdateValue(value);
  }
}

void Add(base::Hasher& hasher, const LearningRate& rate) {
  hasher.UpdateValue(rate.kind);
  hasher.UpdateValue(rate.peak);
  hasher.UpdateValue(rate.warmup_steps);
  hasher.UpdateValue(rate.total_steps);
  hasher.UpdateValue(rate.final_share);
}

}  // namespace

std::string FingerprintOf(const PreparedRun& run, const TrainerOptions& options) {
  base::Hasher hasher;
  for (const partition::LayerCost& layer : run.profile.layers) Add(hasher, layer.name);
  Add(hasher, run.profile.parameters);
  Add(hasher, run.profile.loss_spec.description);
  Add(hasher, run.plan, run.lowered.training);
  Add(hasher, options.optimizer);
  Add(hasher, options.learning_rate);
  hasher.UpdateValue(options.seed);
  hasher.UpdateValue(options.device.precision);
  Add(hasher, options.fingerprint);
  return hasher.HexDigest();
}

}  // namespace stagecoach::engine
