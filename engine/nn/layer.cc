#include "engine/nn/layer.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/catch_exceptions.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/nn/boundary_tensors.h"
#include "engine/nn/parameter_rules.h"
#include "engine/nn/partly_frozen_layer.h"
#include "engine/nn/reordered_layer.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using partition::AlignTensor;

// Freezes the parameters of a frozen model that are not to be trained.
void Freeze(LayerSpec& spec) {
  for (ParameterSpec& parameter : spec.parameters) {
    if (parameter.is_adapter || parameter.is_trained_base) continue;
    parameter.update = UpdateRule::Frozen();
  }
}

const ParameterRule* RuleOf(const LayerContext& context, const LayerSpec& spec,
                            const ParameterSpec& parameter) {
  if (context.rules == nullptr) return nullptr;
  const int number = context.number_in_list;
  const std::string name = number < 0 ? parameter.name : NameInList(number, spec, parameter.name);
  return context.rules->Find(absl::StrCat(context.parameter_prefix, name));
}

// Returns whether rules freeze all parameters of a layer, and it does not know that yet.
bool BecomesFrozen(const LayerContext& context, const LayerSpec& spec) {
  if (context.is_frozen || spec.is_frozen()) return false;
  return !spec.parameters.empty() &&
         std::all_of(spec.parameters.begin(), spec.parameters.end(), [&](const auto& parameter) {
           const ParameterRule* const rule = RuleOf(context, spec, parameter);
           return parameter.update.is_frozen() || (rule != nullptr && rule->is_frozen);
         });
}

// Applies the rules of parameters that are not frozen yet, and returns the positions of those that
// are now.
std::vector<size_t> ApplyRules(const LayerContext& context, LayerSpec& spec) {
  std::vector<size_t> frozen;
  for (size_t i = 0; i < spec.parameters.size(); ++i) {
    ParameterSpec& parameter = spec.parameters[i];
    const ParameterRule* const rule = RuleOf(context, spec, parameter);
    if (rule == nullptr || parameter.update.is_frozen()) continue;
    if (rule->is_frozen) {
      parameter.update = UpdateRule::Frozen();
      frozen.push_back(i);
    } else if (!parameter.update.is_average()) {
      parameter.update.rate_factor = rule->rate_factor;
      parameter.update.weight_decay = rule->weight_decay;
      parameter.decays = parameter.decays || rule->weight_decay.has_value();
    }
  }
  return frozen;
}

// Nothing follows B in a layer whose parameters are all frozen.
void LeaveOutWeights(LayerSpec& spec) {
  spec.backward_weight = spec.backward_shared = {};
  partition::LayerMemory& memory = spec.memory;
  for (schedule::LastUse* const use :
       {&memory.input_last_use, &memory.output_last_use, &memory.output_gradient_last_use}) {
    *use = std::min(*use, LastUse::kBackwardInput);
  }
}

void CompleteMemory(const LayerContext& context, LayerSpec& spec) {
  const DType type = context.device.activation_type();
  partition::LayerMemory& memory = spec.memory;
  for (const ParameterSpec& parameter : spec.parameters) {
    const Shape held{HeldElements(parameter.shape, parameter.blocks, context.part)};
    if (parameter.update.is_frozen()) {
      memory.frozen_bytes += AlignTensor(StoredForm(held, parameter.quantized, type).bytes());
      continue;
    }
    const int64_t bytes = AlignTensor(kernels::Float32(nullptr, held).bytes());
    memory.parameter_bytes += bytes;
    if (parameter.update.is_average()) memory.averaged_bytes += bytes;
    if (type == DType::kFloat32 || parameter.update.is_average()) continue;
    memory.working_bytes += AlignTensor(Tensor{nullptr, type, held}.bytes());
  }
  memory.other_resident_bytes += memory.working_bytes + memory.frozen_bytes;
  memory.optimizer_bytes =
      context.optimizer_states * (memory.parameter_bytes - memory.averaged_bytes);
  const DType input_type = InputType(context.device, context.is_fed_ids());
  memory.input_bytes = BoundaryTensors({context.input}, context.rows, input_type).bytes();
  memory.output_bytes =
      spec.computes_loss ? 0 : BoundaryTensors({spec.output}, context.rows, type).bytes();
  for (int64_t* const area :
       {&memory.stash_bytes, &memory.weight_stash_bytes, &memory.gradient_stash_bytes,
        &memory.workspace_bytes, &memory.cache_bytes}) {
    *area = AlignTensor(*area);
  }
}

absl::StatusOr<std::unique_ptr<Layer>> MakeLayer(const LayerFactory& factory) {
  std::unique_ptr<Layer> layer;
  RETURN_IF_ERROR(base::CatchExceptions("its factory", [&] {
    layer = factory();
    return absl::OkStatus();
  }));
  if (layer == nullptr) return absl::InvalidArgumentError("its factory gives no layer");
  return layer;
}

// An error of Prepare is about the model, so it names no function.
absl::StatusOr<PreparedLayer> CallPrepare(std::unique_ptr<Layer> layer,
                                          const LayerContext& context) {
  LayerContext own = context;
  own.is_frozen = context.is_frozen && !layer->is_trained_whole();
  absl::StatusOr<LayerSpec> spec;
  RETURN_IF_ERROR(base::CatchExceptions("Prepare", [&] {
    spec = layer->Prepare(own);
    return absl::OkStatus();
  }));
  if (!spec.ok()) return spec.status();
  for (ParameterSpec& parameter : spec->parameters) {
    if (!layer->is_trained_whole() || parameter.update.is_frozen()) continue;
    parameter.is_trained_base = !parameter.is_adapter;
  }
  return PreparedLayer{std::move(layer), *std::move(spec)};
}

absl::StatusOr<PreparedLayer> PrepareInOrder(const LayerFactory& factory,
                                             const LayerContext& context) {
  ASSIGN_OR_RETURN(std::unique_ptr<Layer> layer, MakeLayer(factory));
  if (const auto takes = OrderToTake(*layer, context); takes.has_value()) {
    return CallPrepare(std::make_unique<ReorderedLayer>(std::move(layer), *takes), context);
  }
  ASSIGN_OR_RETURN(PreparedLayer prepared, CallPrepare(std::move(layer), context));
  const Shape& output = prepared.spec.output;
  const bool is_image = output.rank() == 3 && context.output_order.has_value();
  if (!is_image || output.image_order() == *context.output_order) return prepared;
  // A layer is prepared only once, so this makes a fresh one.
  ASSIGN_OR_RETURN(layer, MakeLayer(factory));
  return CallPrepare(
      std::make_unique<ReorderedLayer>(std::move(layer), context.input.image_order()), context);
}

}  // namespace

kernels::DType InputType(const kernels::Device& device, bool is_fed_ids) {
  return is_fed_ids ? DType::kInt32 : device.activation_type();
}

Tensor StoredForm(const Shape& shape, const std::optional<kernels::QuantizedMatrix>& quantized,
                  DType type) {
  if (quantized.has_value()) return {nullptr, DType::kUint8, Shape{quantized->bytes()}};
  return {nullptr, type, shape};
}

// Both halves have as many elements, and overlap where the range cannot be divided, so that all
// parts send the same numbers of bytes.
RangeHalves HalveFor(int part, int round, const ElementRange& range) {
  constexpr int64_t kAlignment = PartSums::kAlignment;
  const int64_t half = ((range.count() + 1) / 2 + kAlignment - 1) / kAlignment * kAlignment;
  const int64_t count = std::min(range.count(), half);
  const ElementRange lower{range.begin, range.begin + count};
  const ElementRange upper{range.end - count, range.end};
  return (part >> round & 1) == 0 ? RangeHalves{lower, upper} : RangeHalves{upper, lower};
}

partition::PartExchange PartSums::OfSum(const Tensor& tensor, TensorPart part) {
  int64_t sent = 0;
  ElementRange range{0, tensor.elements()};
  for (int round = 0; 1 << round < part.parts; ++round) {
    // The other half, and later what the other part lacks.
    sent += range.count();
    range = HalveFor(part.index, round, range).own;
  }
  return {.bytes = sent * SizeOf(tensor.dtype), .rounds = 2};
}

int64_t HeldElements(const Shape& shape, const std::optional<BlockOrder>& blocks, TensorPart part) {
  return shape.elements() / (blocks.has_value() && blocks->is_cut() ? part.parts : 1);
}

std::string NameInList(int number, const LayerSpec& layer, const std::string& name) {
  if (layer.stands_for == 1) return absl::StrCat(number, ".", name);
  const size_t dot = name.find('.');
  int inner = 0;
  STAGECOACH_CHECK(absl::SimpleAtoi(absl::string_view(name).substr(0, dot), &inner),
                   "a layer that stands for several numbers its parameters");
  return absl::StrCat(number + inner, absl::string_view(name).substr(dot));
}

bool LayerSpec::is_frozen() const {
  return !parameters.empty() && std::all_of(parameters.begin(), parameters.end(),
                                            [](const auto& p) { return p.update.is_frozen(); });
}

absl::Status Layer::BackwardWeight(const LayerArgs&) { return absl::OkStatus(); }

absl::Status Layer::Backward(const LayerArgs& args) {
  RETURN_IF_ERROR(BackwardInput(args));
  return BackwardWeight(args);
}

uint64_t StreamOfLayer(uint64_t outer, int index) {
  const auto low = static_cast<uint32_t>(outer), high = static_cast<uint32_t>(outer >> 32);
  const auto words = base::Philox4x32({low, high, static_cast<uint32_t>(index), 0}, {0, 0});
  constexpr uint64_t kMark = uint64_t{1} << 61;
  return kMark | ((uint64_t{words[1]} << 32 | words[0]) & (kMark - 1));
}

absl::StatusOr<PreparedLayer> PrepareLayer(const LayerFactory& factory,
                                           const LayerContext& context) {
  ASSIGN_OR_RETURN(PreparedLayer prepared, PrepareInOrder(factory, context));
  LayerSpec& spec = prepared.spec;
  if (spec.takes_ids != context.is_fed_ids()) {
    const auto name = [](bool ids) { return ids ? "ids" : "numbers"; };
    return absl::InvalidArgumentError(absl::StrCat(spec.description, " takes ",
                                                   name(spec.takes_ids), ", but is given ",
                                                   name(context.is_fed_ids())));
  }
  if (spec.takes_skip != context.skip.has_value()) {
    return absl::InvalidArgumentError(
        spec.takes_skip
            ? absl::StrCat(spec.description, " takes the output of an earlier layer: say which")
            : absl::StrCat(spec.description, " takes nothing besides its input, but a skip of ",
                           context.skip->ToString(),
                           " ends here; expected a layer such as add skip"));
  }
  if (BecomesFrozen(context, spec)) {  // it may keep less then
    LayerContext frozen = context;
    frozen.is_frozen = true;
    return PrepareLayer(factory, frozen);
  }
  if (context.is_frozen) Freeze(spec);
  const std::vector<size_t> frozen = ApplyRules(context, spec);
  if (spec.is_frozen()) {
    LeaveOutWeights(spec);
  } else if (!frozen.empty()) {
    prepared.layer = std::make_unique<PartlyFrozenLayer>(std::move(prepared.layer), frozen, spec);
  }
  for (const ParameterSpec& parameter : spec.parameters) {
    if (!parameter.quantized.has_value() || parameter.update.is_frozen()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(spec.description, ": \"", parameter.name,
                     "\" is quantized, so the model's parameters must be frozen"));
  }
  CompleteMemory(context, spec);
  return prepared;
}

}  // namespace stagecoach::engine
