#include "engine/train/fingerprint.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/hash.h"

namespace stagecoach::engine {
namespace {

// Lines "name: value".
class Lines {
 public:
  void Add(absl::string_view name, const absl::AlphaNum& value) {
    absl::StrAppend(&text_, name, ": ", value, "\n");
  }
  // Adds a float with all its bits. The name is separate, since an int would rather convert to a
  // float than to an AlphaNum.
  void AddFloat(absl::string_view name, float value) { Add(name, absl::StrFormat("%.9g", value)); }

  std::string Take() && { return std::move(text_); }

 private:
  std::string text_;
};

void Update(base::Hasher& hasher, absl::string_view text) {
  hasher.UpdateValue(text.size());
  hasher.Update(text);
}

std::string HashOfLayers(const ModelProfile& profile) {
  base::Hasher hasher;
  for (const partition::LayerCost& layer : profile.layers) Update(hasher, layer.name);
  return hasher.HexDigest();
}

std::string HashOf(const ParameterTable& parameters) {
  base::Hasher hasher;
  for (const ModelParameter& parameter : parameters.all()) {
    Update(hasher, absl::StrCat(parameter.name, " ", parameter.shape.ToString()));
    hasher.UpdateValue(parameter.type);
    hasher.UpdateValue(parameter.init.kind);
    hasher.UpdateValue(parameter.init.a);
    hasher.UpdateValue(parameter.init.b);
    hasher.UpdateValue(parameter.random_stream);
    hasher.UpdateValue(parameter.decays);
    hasher.UpdateValue(parameter.update.rate_factor);
    hasher.UpdateValue(parameter.update.weight_decay.value_or(-1.0F));
    hasher.UpdateValue(parameter.tied_to.value());
    if (parameter.update.is_average()) hasher.UpdateValue(parameter.update.momentum);
    if (parameter.update.is_frozen()) hasher.UpdateValue(parameter.update.kind);
    if (parameter.quantized.has_value()) Update(hasher, parameter.quantized->ToString());
    if (parameter.blocks.has_value()) hasher.UpdateValue(parameter.blocks->blocks);
  }
  return hasher.HexDigest();
}

std::string HashOf(const schedule::Schedule& lowered) {
  base::Hasher hasher;
  for (int rank = 0; rank < lowered.num_ranks(); ++rank) {
    Update(hasher, absl::StrCat("rank ", rank));
    for (const schedule::Action& action : lowered.list_of(schedule::Rank(rank))) {
      Update(hasher, ToString(action));
    }
  }
  return hasher.HexDigest();
}

void Add(const partition::Plan& plan, const schedule::Schedule& lowered, Lines& lines) {
  lines.Add("micro-batches", plan.schedule.num_micro_batches);
  lines.Add("rows of a micro-batch", plan.micro_batch_rows);
  lines.Add("first layers of stages", absl::StrJoin(plan.first_layer, " "));
  lines.Add("recomputed layers", absl::StrJoin(plan.recomputed, " "));
  lines.Add("replicas", plan.replication.replicas);
  lines.Add("tensor parts", plan.tensor_parts);
  lines.Add("gradient blocks", plan.replication.gradient_blocks);
  lines.Add("sharding of the optimizer", static_cast<int>(plan.replication.shards_optimizer));
  lines.Add("optimizer on the host", static_cast<int>(plan.replication.offloads_optimizer));
  lines.Add("reduction of gradients", partition::Name(plan.replication.reduction));
  lines.Add("bytes of a part of a reduction", plan.replication.part_bytes);
  lines.Add("schedule", plan.schedule.name);
  lines.Add("order of actions", HashOf(lowered));
}

void Add(const Optimizer& optimizer, Lines& lines) {
  lines.Add("optimizer", TypeOf(optimizer).name);
  lines.AddFloat("weight decay", optimizer.weight_decay);
  for (const HyperParameter& parameter : HyperParameters()) {
    lines.AddFloat(parameter.name, optimizer.*parameter.value);
  }
  lines.AddFloat("clipping norm", optimizer.clip_norm);
  lines.AddFloat("decay of averages", optimizer.ema_decay);
  lines.Add("check of gradients", static_cast<int>(optimizer.checks_gradients));
}

void Add(const LearningRate& rate, Lines& lines) {
  lines.Add("learning rate's schedule", static_cast<int>(rate.kind));
  lines.AddFloat("learning rate", rate.peak);
  lines.Add("steps of warmup", rate.warmup_steps);
  lines.Add("steps of the learning rate's schedule", rate.total_steps);
  lines.AddFloat("minimum of the learning rate", rate.minimum);
  lines.Add("period of the learning rate", rate.period);
  lines.AddFloat("factor of the learning rate", rate.factor);
}

}  // namespace

std::string FingerprintOf(const PreparedRun& run, const TrainerOptions& options) {
  Lines lines;
  lines.Add("layers", HashOfLayers(run.profile));
  lines.Add("parameters and how they start", HashOf(run.profile.parameters));
  if (!run.model.skips.empty()) {
    lines.Add("skips", absl::StrJoin(run.model.skips, " ", [](std::string* out, const Skip& skip) {
                absl::StrAppend(out, skip.from, "-", skip.to);
              }));
  }
  lines.Add("loss", run.profile.loss_spec.description);
  for (const float weight : run.profile.loss_spec.class_weights) {
    lines.AddFloat("weight of a class", weight);
  }
  Add(run.plan(), run.compiled.lowered->training, lines);
  Add(options.optimizer, lines);
  Add(options.learning_rate, lines);
  lines.Add("seed", options.seed);
  lines.Add("steps that are not finite",
            options.on_nonfinite == OnNonFinite::kSkip ? "skipped" : "an error");
  lines.Add("steps between checks of replicas", options.replica_check_steps);
  lines.Add("device", Name(options.device.kind));
  lines.Add("transfers", run.compiled.lowered->transfers == schedule::Transfers::kGrouped
                             ? "grouped"
                             : "separate");
  lines.Add("precision", kernels::PrecisionName(options.device.precision));
  return absl::StrCat(options.fingerprint, std::move(lines).Take());
}

}  // namespace stagecoach::engine
