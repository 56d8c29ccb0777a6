#include "engine/runtime/stage/profile.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/data/feed.h"
#include "engine/runtime/stage/layer_cost.h"
#include "partition/cost/analytic.h"
#include "partition/cost/device_groups.h"

namespace stagecoach::engine {
namespace {

absl::Status TieLayers(const Model& model, int tensor_parts, ModelProfile& profile) {
  for (const ParameterTie& tie : model.ties) RETURN_IF_ERROR(profile.parameters.Tie(tie));
  for (const ModelParameter& parameter : profile.parameters.all()) {
    if (!parameter.has_tied_gradient()) continue;
    const int64_t bytes = BytesOfGradient(parameter, tensor_parts);
    partition::LayerCost& layer = profile.layers[static_cast<size_t>(parameter.layer)];
    layer.memory.workspace_bytes =
        std::max(layer.memory.workspace_bytes, partition::TieWorkspaceBytes(bytes));
    if (!parameter.is_copy()) continue;
    layer.parameters -= parameter.shape.elements();
    profile.ties.push_back({.layer = profile.parameters[parameter.tied_to].layer,
                            .other_layer = parameter.layer,
                            .bytes = bytes});
  }
  return absl::OkStatus();
}

// How devices of one machine exchange their parts: a message is copied, which reads and writes it,
// and half of those of a sum are added to what is there, which reads two and writes one.
schedule::Link ExchangeInMemory(const partition::DeviceSpeed& device) {
  constexpr double kPasses = 2 + 3.0 / 2;
  return {.latency_ns = std::llround(device.overhead_ns),
          .bytes_per_second = device.bytes_per_second / kPasses};
}

absl::Status Analyze(const Model& model, const ProfileOptions& options, kernels::Device& device,
                     ModelProfile& profile) {
  profile.micro_batch_rows = options.micro_batch_rows;
  const bool is_cross_entropy = model.loss()->is_softmax_cross_entropy();
  ASSIGN_OR_RETURN(profile.skips,
                   Skips::Create(model.skips, model.num_layers(), options.micro_batch_rows,
                                 device.activation_type()));
  const ParameterRules rules(model.parameter_rules, model.ties);
  bool layer_computes_loss = false, is_untrained = true, has_frozen = false;
  Shape input = model.input;
  for (const LayerFactory& factory : model.layers) {
    const bool is_first = profile.layers.empty();
    const auto index = static_cast<int>(profile.layers.size());
    const bool is_last = profile.layers.size() + 1 == model.layers.size();
    const auto prepare = [&](const RowPass& pass) -> absl::StatusOr<LayerSpec> {
      LayerContext context = {.device = device,
                              .rows = pass.rows,
                              .input = input,
                              .optimizer_states = options.optimizer.states(),
                              .vocabulary = is_first ? model.vocabulary : 0,
                              .skip = profile.skips.ReadBy(index),
                              .feeds_cross_entropy = is_last && is_cross_entropy,
                              .cached_positions = model.cached_positions,
                              .cached_sequences = model.cached_sequences,
                              .rows_are_sequences = pass.rows_are_sequences,
                              .is_frozen = model.is_frozen,
                              .has_documents = model.has_documents,
                              .rules = &rules,
                              .parameter_prefix = NameOf(ParameterRef{index, ""}),
                              .part = {.parts = options.tensor_parts}};
      if (is_last) context.output_order = kernels::ImageOrder::kChannelsFirst;
      ASSIGN_OR_RETURN(PreparedLayer prepared, PrepareLayer(factory, context));
      return std::move(prepared.spec);
    };
    absl::StatusOr<LayerSpec> spec = prepare(MainPass(model, device, options.micro_batch_rows));
    if (!spec.ok()) {
      return base::Annotate(spec.status(), absl::StrCat("layer ", index));
    }
    for (const RowPass& pass : OtherPasses(model, device, options.micro_batch_rows)) {
      ASSIGN_OR_RETURN(const LayerSpec other, prepare(pass));
      spec->memory.workspace_bytes =
          std::max(spec->memory.workspace_bytes, other.memory.workspace_bytes);
    }
    profile.skips.SetOutput(index, spec->output);
    profile.skips.AddTo(index, input, spec->output, spec->memory);
    partition::LayerCost cost = CostOf(*spec);
    // The first layer's input is data, so no gradient of it is computed; nor is that of frozen
    // layers before the first that is trained.
    if (is_untrained && spec->is_frozen()) has_frozen = true;
    is_untrained = is_untrained && (spec->is_frozen() || spec->parameters.empty());
    cost.skips_backward = is_untrained && has_frozen;
    const bool has_b = !is_first && !cost.skips_backward;
    EstimateTimes({.forward = spec->forward,
                   .backward_input = has_b ? spec->backward_input : partition::Work(),
                   .backward_weight = spec->backward_weight,
                   .backward_shared = has_b ? spec->backward_shared : partition::Work(),
                   .step = options.optimizer.StepWork(HeldParameters(*spec, options.tensor_parts))},
                  partition::DeviceSpeed{}, cost);
    AddExchangeTimes(options.tensor_parts, ExchangeInMemory(partition::DeviceSpeed{}), cost);
    profile.parameters.Add(index, spec->parameters);
    if (spec->has_attention) profile.attention_layers.push_back(index);
    profile.layers.push_back(std::move(cost));
    profile.inputs.push_back(input);
    input = spec->output;
    layer_computes_loss = spec->computes_loss;
  }
  RETURN_IF_ERROR(TieLayers(model, options.tensor_parts, profile));
  RETURN_IF_ERROR(rules.Check(profile.parameters));
  profile.output = input;
  // A copy reads and writes.
  profile.overheads.host_link = {
      .link = {.bytes_per_second = partition::DeviceSpeed{}.bytes_per_second / 2},
      .occupies_rank = true};
  ASSIGN_OR_RETURN(profile.loss_spec,
                   model.loss()->Prepare(LossContext{device, options.micro_batch_rows, input}));
  profile.loss_spec.is_computed_by_layer = layer_computes_loss;
  const BoundaryTensors fed({model.input}, options.micro_batch_rows,
                            InputType(device, model.takes_ids()));
  profile.feed_bytes_per_micro_batch = BytesOfFeed(device, fed);
  profile.loss_workspace_bytes =
      BytesOfEnds(device, fed, profile.loss_spec, /*document_positions=*/0,
                  options.micro_batch_rows, /*micro_batches=*/1)
          .loss_workspace_bytes;
  profile.loss_bytes_per_micro_batch = BytesOfLoss(profile.loss_spec, options.micro_batch_rows);
  profile.stage_bytes_per_micro_batch =
      BytesOfDocuments(DocumentPositions(model), options.micro_batch_rows);
  profile.collectives = BytesOfCollectives(profile.parameters, options.optimizer, options.results,
                                           options.tensor_parts);
  return absl::OkStatus();
}

// Returns a short name: "layer norm 8" -> "layer_norm.3", "residual(linear 8 -> 8)" ->
// "residual.3".
std::string UniqueName(absl::string_view description, size_t index) {
  const auto end = std::find_if_not(description.begin(), description.end(),
                                    [](char c) { return absl::ascii_isalpha(c) || c == ' '; });
  std::string words(description.begin(), end);
  absl::StripAsciiWhitespace(&words);
  std::replace(words.begin(), words.end(), ' ', '_');
  return absl::StrCat(words.empty() ? "layer" : words, ".", index);
}

}  // namespace

absl::StatusOr<ModelProfile> AnalyzeModel(const Model& model, const ProfileOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device,
                   MakePlanningDevice(options.device));
  ModelProfile profile;
  profile.updates_in_backward = UpdatesInBackward(options.optimizer, options.device.kind);
  absl::Status status;
  device->stream().Run([&] { status = Analyze(model, options, *device, profile); });
  RETURN_IF_ERROR(status);
  return profile;
}

partition::Profile JoinProfiles(std::string model_name, absl::Span<const ModelProfile> sizes) {
  STAGECOACH_CHECK(!sizes.empty(), "a profile has at least one size");
  partition::Profile joined = {.model = std::move(model_name)};
  joined.updates_in_backward = sizes.front().updates_in_backward;
  joined.collectives = sizes.front().collectives;
  joined.ties = sizes.front().ties;
  joined.overheads = sizes.front().overheads;
  for (const ModelProfile& profile : sizes) {
    partition::SizedLayers sized = profile;
    for (size_t i = 0; i < sized.layers.size(); ++i) {
      sized.layers[i].name = UniqueName(sized.layers[i].name, i);
    }
    joined.sizes.push_back(std::move(sized));
  }
  return joined;
}

absl::StatusOr<partition::Profile> AnalyzeProfile(const Model& model, std::string model_name,
                                                  absl::Span<const int64_t> micro_batch_rows,
                                                  ProfileOptions options) {
  std::vector<ModelProfile> sizes;
  for (const int64_t rows : micro_batch_rows) {
    options.micro_batch_rows = rows;
    ASSIGN_OR_RETURN(ModelProfile size, AnalyzeModel(model, options));
    sizes.push_back(std::move(size));
  }
  return JoinProfiles(std::move(model_name), sizes);
}

}  // namespace stagecoach::engine
