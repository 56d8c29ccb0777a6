#include "engine/runtime/stage/stage.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "engine/runtime/stage/fill_tensors.h"
#include "engine/runtime/stage/layer_cost.h"
#include "kernels/bfloat16.h"
#include "kernels/ops/ops.h"
#include "kernels/staging.h"
#include "partition/cost/tie.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using partition::AlignTensor;
using schedule::AlignBlock;

// Returns whether the layers, prepared here, declare what the table says about them.
bool Declares(const Sequential& chain, absl::Span<const ModelParameter> parameters) {
  size_t next = 0;
  for (int i = 0; i < chain.size(); ++i) {
    for (const ParameterSpec& spec : chain.spec(i).parameters) {
      if (next == parameters.size() || parameters[next].shape != spec.shape) return false;
      ++next;
    }
  }
  return next == parameters.size();
}

// Returns consecutive elements of a parameter, for the norm of their gradients.
kernels::ParameterTensors PieceOf(const kernels::ParameterTensors& whole, int64_t first,
                                  int64_t count) {
  kernels::ParameterTensors piece;
  piece.average = whole.average;
  for (const auto member :
       {&kernels::ParameterTensors::value, &kernels::ParameterTensors::gradient}) {
    const Tensor& tensor = whole.*member;
    piece.*member = {static_cast<std::byte*>(tensor.data) + first * SizeOf(tensor.dtype),
                     tensor.dtype, Shape{count}};
  }
  return piece;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> Stage::Create(kernels::Device& device, const Model& model,
                                                     const ParameterTable& parameters,
                                                     const StageOptions& options) {
  const auto first = static_cast<size_t>(options.first_layer);
  const auto count = static_cast<size_t>(options.last_layer - options.first_layer + 1);
  const ParameterRules rules(model.parameter_rules, model.ties);
  const auto prepare = [&](const RowPass& pass) {
    LayerContext context = {
        .device = device,
        .rows = pass.rows,
        .input = options.input,
        .optimizer_states = options.optimizer.states(),
        .vocabulary = options.vocabulary,
        .feeds_cross_entropy = options.is_last && model.loss()->is_softmax_cross_entropy(),
        .cached_positions = model.cached_positions,
        .cached_sequences = model.cached_sequences,
        .rows_are_sequences = pass.rows_are_sequences,
        .is_frozen = model.is_frozen,
        .has_documents = model.has_documents,
        .rules = &rules,
        .part = options.part,
        .part_sums = options.part_sums};
    if (options.is_last) context.output_order = kernels::ImageOrder::kChannelsFirst;
    return Sequential::Prepare(absl::MakeConstSpan(model.layers).subspan(first, count), context,
                               options.first_layer, options.skips);
  };
  ASSIGN_OR_RETURN(Sequential chain, prepare(MainPass(model, device, options.micro_batch_rows)));
  const auto own = parameters.OfLayers(options.first_layer, options.last_layer);
  STAGECOACH_CHECK(Declares(chain, own), "a layer declares other parameters than it did before");
  for (const ModelParameter& parameter : own) {
    if (!parameter.has_tied_gradient()) continue;
    chain.ReserveWorkspace(
        parameter.layer - options.first_layer,
        partition::TieWorkspaceBytes(BytesOfGradient(parameter, options.part.parts)));
  }
  for (size_t i = 0; i < options.workspace_bytes.size(); ++i) {
    chain.ReserveWorkspace(static_cast<int>(i), options.workspace_bytes[i]);
  }
  std::vector<OtherChain> others;
  for (const RowPass& pass : OtherPasses(model, device, options.micro_batch_rows)) {
    ASSIGN_OR_RETURN(Sequential other, prepare(pass));
    for (int i = 0; i < chain.size(); ++i) {
      chain.ReserveWorkspace(i, other.spec(i).memory.workspace_bytes);
    }
    const BoundaryTensors output({other.output()}, pass.rows, device.activation_type());
    const BoundaryTensors input({options.input}, pass.rows,
                                InputType(device, options.vocabulary > 0));
    others.push_back({pass, std::move(other), input, output});
  }
  std::unique_ptr<Stage> stage(new Stage(device, own, options, std::move(chain)));
  stage->others_ = std::move(others);
  if (options.is_last) RETURN_IF_ERROR(stage->PrepareLoss(model.loss));
  RETURN_IF_ERROR(stage->PrepareFeed());
  stage->LayOut();
  return stage;
}

Stage::Stage(kernels::Device& device, absl::Span<const ModelParameter> parameters,
             const StageOptions& options, Sequential chain)
    : device_(device),
      options_(options),
      chain_(std::move(chain)),
      input_({options.input}, options.micro_batch_rows, input_type()),
      output_({chain_.output()}, options.micro_batch_rows, device.activation_type()),
      parameters_(parameters),
      blocks_(options.micro_batches, options.replica, options.replication) {}

absl::Status Stage::PrepareLoss(const LossFactory& factory) {
  loss_ = factory();
  ASSIGN_OR_RETURN(
      loss_spec_, loss_->Prepare(LossContext{device_, options_.micro_batch_rows, chain_.output()}));
  loss_spec_.is_computed_by_layer = chain_.computes_loss();
  ASSIGN_OR_RETURN(host_results_,
                   device_.AllocateHost(options_.micro_batches * kResultBytesPerMicroBatch));
  return absl::OkStatus();
}

absl::Status Stage::PrepareFeed() {
  ASSIGN_OR_RETURN(
      feed_, Feed::Create(device_, {.micro_batch_rows = options_.micro_batch_rows,
                                    .micro_batches = options_.micro_batches,
                                    .features = options_.is_first ? options_.input.elements() : 0,
                                    .vocabulary = options_.vocabulary,
                                    .feeds_loss = has_loss(),
                                    .target = loss_spec_.target,
                                    .document_positions = options_.document_positions}));
  return absl::OkStatus();
}

void Stage::LayOut() {
  const partition::StagePosition position = {.is_first = options_.is_first,
                                             .is_last = options_.is_last,
                                             .splits_backward = options_.splits_backward,
                                             .trains = options_.trains,
                                             .replication = options_.replication};
  const partition::EndMemory ends =
      BytesOfEnds(device_, input_, loss_spec_, options_.document_positions,
                  options_.micro_batch_rows, options_.micro_batches);
  chain_.LayOut(position, ends, options_.recomputed);
  for (OtherChain& other : others_) {
    other.chain.LayOut(position, ends);
    STAGECOACH_CHECK(other.chain.memory().workspace_bytes <= memory().workspace_bytes &&
                         other.chain.cache_bytes() == chain_.cache_bytes(),
                     "another pass takes more than the main one");
  }
}

absl::Status Stage::Place(std::byte* resident, std::byte* host, uint64_t seed, bool draws_all) {
  PlaceParameters(resident, host);
  RETURN_IF_ERROR(InitializeParameters(seed, draws_all));
  if (options_.trains) RETURN_IF_ERROR(GroupParameters());
  const bool updates = options_.trains && !options_.replication.shards_optimizer;
  if (updates && !device_.memory_is_host()) {
    RETURN_IF_ERROR(WarmUpUpdate(options_.optimizer, device_, TrainedTensors()));
  }
  RETURN_IF_ERROR(RoundParameters());
  return Finish();
}

void Stage::PlaceParameters(std::byte* resident, std::byte* host) {
  std::byte* values = resident;
  std::byte* gradients = values + AlignBlock(memory().parameter_bytes);
  std::byte* states = gradients + AlignBlock(memory().gradient_bytes);
  std::byte* others = states + AlignBlock(memory().optimizer_bytes);
  const bool trains = options_.trains;
  const bool offloads = trains && options_.replication.offloads_optimizer;
  const int64_t copy_bytes =
      trains ? memory().gradient_bytes / options_.replication.gradient_copies() : 0;
  // The host's memory has values, if any, and then states.
  std::byte* host_values = host;
  if (offloads) states = host + copy_bytes - memory().parameter_bytes;
  all_values_ = {values, DType::kFloat32,
                 Shape{memory().parameter_bytes / SizeOf(DType::kFloat32)}};
  if (trains) {
    all_gradients_ = {gradients, DType::kFloat32, Shape{copy_bytes / SizeOf(DType::kFloat32)}};
  }
  shard_states_ = states;
  const bool has_states = trains && !options_.replication.shards_optimizer;
  const int own_states = has_states ? options_.optimizer.states() : 0;
  const int micro_batches = options_.micro_batches * options_.replication.replicas;
  const float share = 1.0F / static_cast<float>(micro_batches);
  gradients_.resize(static_cast<size_t>(options_.replication.gradient_copies()));
  const DType type = device_.activation_type();
  const auto take = [](std::byte*& area, DType of, const Shape& shape) {
    const Tensor tensor{area, of, shape};
    area += AlignTensor(tensor.bytes());
    return tensor;
  };
  for (const ModelParameter& parameter : parameters_) {
    const Shape shape = HeldShape(parameter);
    kernels::ParameterTensors& tensors = tensors_.emplace_back();
    tensors.decays = parameter.decays;
    tensors.rate_factor = parameter.update.rate_factor;
    tensors.weight_decay = parameter.update.weight_decay;
    if (parameter.update.is_frozen()) {
      const Tensor frozen = StoredForm(shape, parameter.quantized, type);
      tensors.value = take(others, frozen.dtype, frozen.shape);
      values_.push_back(tensors.value);
      for (std::vector<Tensor>& copy : gradients_) {
        if (trains) copy.emplace_back();
      }
      continue;
    }
    const bool is_average = parameter.update.is_average();
    if (is_average) tensors.average = {parameter.update.momentum, share};
    // If nothing is trained, a value is what layers read.
    const bool is_rounded = type != DType::kFloat32 && !is_average;
    const bool is_on_host = offloads && is_rounded && has_states;
    tensors.value = take(is_on_host ? host_values : values,
                         is_rounded && !trains ? type : parameter.type, shape);
    if (trains) tensors.gradient = take(gradients, DType::kFloat32, shape);
    for (int state = 0; !is_average && state < own_states; ++state) {
      StateOf(options_.optimizer, tensors, state) = take(states, DType::kFloat32, shape);
    }
    if (is_rounded && trains) tensors.working = take(others, type, shape);
    values_.push_back(tensors.working.empty() ? tensors.value : tensors.working);
    for (size_t copy = 0; trains && copy < gradients_.size(); ++copy) {
      gradients_[copy].push_back(
          {static_cast<std::byte*>(tensors.gradient.data) + static_cast<int64_t>(copy) * copy_bytes,
           DType::kFloat32, shape});
    }
  }
  cache_ = others;
  others += chain_.cache_bytes();
  if (options_.is_first && !device_.memory_is_host()) {
    feed_.PlaceAhead(others);
    others += AlignTensor(options_.micro_batches * feed_.feature_bytes());
  }
  feed_.PlaceDocuments(others);
  others += options_.micro_batches *
            BytesOfDocuments(options_.document_positions, options_.micro_batch_rows);
  if (!options_.is_last) return;
  feed_.PlaceTargets(others);
  others += options_.micro_batches * BytesOfTargets(loss_spec_.target, options_.micro_batch_rows);
  results_ = {others, DType::kFloat64, Shape{options_.micro_batches, 2}};
}

absl::Status Stage::InitializeParameters(uint64_t seed, bool draws_all) {
  std::vector<Tensor> values;
  std::vector<const ModelParameter*> drawn;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!draws_all && !parameters_[i].is_adapter) continue;
    values.push_back(tensors_[i].value);
    drawn.push_back(&parameters_[i]);
  }
  if (drawn.empty()) return absl::OkStatus();
  return FillTensors(device_, values, [&](int i, const Tensor& tensor) {
    const ModelParameter& parameter = *drawn[static_cast<size_t>(i)];
    FillFromFloats(parameter, options_.part, tensor,
                   [&](absl::Span<float> initial) { FillInitial(parameter, seed, initial); });
    return absl::OkStatus();
  });
}

std::vector<kernels::ParameterTensors> Stage::TrainedTensors() const {
  std::vector<kernels::ParameterTensors> trained;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    if (!parameters_[i].update.is_frozen()) trained.push_back(tensors_[i]);
  }
  return trained;
}

absl::Status Stage::GroupParameters() {
  kernels::OptimizerOps& ops = device_.ops().optimizer();
  ASSIGN_OR_RETURN(all_parameters_, ops.CreateGroup(device_.stream(), TrainedTensors()));
  RETURN_IF_ERROR(GroupCounted());
  return options_.updates_in_backward ? GroupByTime() : absl::OkStatus();
}

absl::Status Stage::GroupCounted() {
  kernels::OptimizerOps& ops = device_.ops().optimizer();
  const int first_piece = parameters_.empty() ? 0 : parameters_.front().first_piece;
  std::vector<kernels::ParameterTensors> counted;  // consecutive ones
  int64_t first = 0;
  const auto close = [&]() -> absl::Status {
    if (counted.empty()) return absl::OkStatus();
    ASSIGN_OR_RETURN(std::unique_ptr<kernels::ParameterGroup> group,
                     ops.CreateGroup(device_.stream(), counted));
    counted_parameters_.push_back({std::move(group), first, std::ssize(counted)});
    counted.clear();
    return absl::OkStatus();
  };
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const ModelParameter& parameter = parameters_[i];
    if (parameter.is_copy() || parameter.update.is_frozen() || !Counts(parameter)) {
      RETURN_IF_ERROR(close());
      continue;
    }
    const int pieces = PiecesOf(parameter);
    const int64_t begin = FirstPieceOf(parameter) - first_piece;
    if (begin != first + std::ssize(counted)) RETURN_IF_ERROR(close());
    if (counted.empty()) first = begin;
    const int64_t elements = tensors_[i].gradient.elements() / pieces;
    for (int piece = 0; piece < pieces; ++piece) {
      counted.push_back(PieceOf(tensors_[i], piece * elements, elements));
    }
  }
  return close();
}

absl::Status Stage::GroupByTime() {
  kernels::OptimizerOps& ops = device_.ops().optimizer();
  std::vector<kernels::ParameterTensors> tied;
  for (int layer = 0; layer < chain_.size(); ++layer) {
    std::vector<kernels::ParameterTensors> own;
    for (int i = chain_.first_parameter(layer); i < chain_.first_parameter(layer + 1); ++i) {
      const auto index = static_cast<size_t>(i);
      if (parameters_[index].update.is_frozen()) continue;
      (parameters_[index].is_tied() ? tied : own).push_back(tensors_[index]);
    }
    ASSIGN_OR_RETURN(layer_parameters_.emplace_back(), ops.CreateGroup(device_.stream(), own));
  }
  if (tied.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(tied_parameters_, ops.CreateGroup(device_.stream(), tied));
  return absl::OkStatus();
}

absl::Status Stage::Finish() { return device_.stream().Finish(); }

absl::Status Stage::Update(const UpdateStep& update) {
  return UpdateParameters(options_.optimizer, update, device_,
                          options_.updates_in_backward ? *tied_parameters_ : *all_parameters_);
}

absl::Status Stage::SquaredNorms(const Tensor& squares) {
  kernels::OptimizerOps& ops = device_.ops().optimizer();
  for (const CountedParameters& counted : counted_parameters_) {
    const Tensor own{squares.f64() + counted.first, DType::kFloat64, Shape{counted.count}};
    RETURN_IF_ERROR(ops.SquaredNorms(device_.stream(), *counted.group, own));
  }
  return absl::OkStatus();
}

const Tensor& Stage::GradientOf(ParameterId id) const { return tensors_[IndexOf(id)].gradient; }

absl::Status Stage::FetchResults() {
  if (!has_loss()) return absl::OkStatus();
  return device_.stream().CopyToHost(host_results_.data(), results_.data, results_.bytes());
}

LossResult Stage::Result(MicroBatch micro_batch) const {
  const double* const result =
      reinterpret_cast<const double*>(host_results_.data()) + int64_t{2} * micro_batch.value();
  return {result[0], static_cast<int64_t>(result[1])};
}

Shape Stage::HeldShape(const ModelParameter& parameter) const {
  if (parameter.pieces() == 1) return parameter.shape;
  return Shape{HeldElements(parameter.shape, parameter.blocks, options_.part)};
}

size_t Stage::IndexOf(ParameterId id) const {
  STAGECOACH_CHECK(has(id), "the parameter is of another stage");
  return static_cast<size_t>(id.value() - parameters_.front().id.value());
}

absl::StatusOr<std::vector<float>> Stage::CopyParameter(ParameterId id) {
  const ModelParameter& parameter = parameters_[IndexOf(id)];
  const Tensor& value = tensors_[IndexOf(id)].value;
  std::vector<float> copy(static_cast<size_t>(HeldShape(parameter).elements()));
  const bool is_float32 = value.dtype == DType::kFloat32;
  std::vector<std::byte> stored(is_float32 ? 0 : static_cast<size_t>(value.bytes()));
  void* const to = is_float32 ? static_cast<void*>(copy.data()) : stored.data();
  RETURN_IF_ERROR(
      kernels::Download(device_, {{.to = to, .from = value.data, .bytes = value.bytes()}}));
  if (parameter.quantized.has_value()) {
    Dequantize(*parameter.quantized, stored, absl::MakeSpan(copy));
  } else if (!is_float32) {
    const auto* const rounded = reinterpret_cast<const uint16_t*>(stored.data());
    std::transform(rounded, rounded + copy.size(), copy.begin(), kernels::FromBfloat16);
  }
  return copy;
}

absl::Status Stage::SetParameter(ParameterId id, absl::Span<const float> values) {
  const ModelParameter& parameter = parameters_[IndexOf(id)];
  STAGECOACH_CHECK(std::ssize(values) == parameter.shape.elements(), "another number of values");
  const Tensor& value = tensors_[IndexOf(id)].value;
  RETURN_IF_ERROR(FillTensors(device_, {value}, [&](int /*tensor*/, const Tensor& tensor) {
    FillFromFloats(parameter, options_.part, tensor, [&](absl::Span<float> to) {
      std::copy(values.begin(), values.end(), to.begin());
    });
    return absl::OkStatus();
  }));
  RETURN_IF_ERROR(RoundParameters());
  return Finish();
}

absl::Status Stage::StartAverages() { return CopyToAverages(device_.stream(), tensors_); }

absl::Status Stage::SwapAverages() {
  return device_.ops().optimizer().SwapAverages(device_.stream(), *all_parameters_);
}

std::vector<TrainedPiece> Stage::TrainedPieces() const {
  std::vector<TrainedPiece> pieces;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const ParameterId id = parameters_[i].original();
    const bool is_copy = parameters_[i].is_copy();
    kernels::ParameterTensors tensors = tensors_[i];
    const int64_t first = FirstHeld(parameters_[i], options_.part, tensors.value);
    pieces.push_back(
        {.parameter = id, .is_copy = is_copy, .first = first, .tensor = tensors.value});
    for (int state = 0; state < options_.optimizer.states(); ++state) {
      const Tensor& tensor = StateOf(options_.optimizer, tensors, state);
      if (tensor.empty()) continue;
      pieces.push_back(
          {.parameter = id, .is_copy = is_copy, .state = state, .first = first, .tensor = tensor});
    }
  }
  return pieces;
}

absl::Status Stage::RoundParameters() {
  if (!options_.trains) return absl::OkStatus();  // the values are what layers read
  return device_.ops().optimizer().RoundParameters(device_.stream(), *all_parameters_);
}

}  // namespace stagecoach::engine
