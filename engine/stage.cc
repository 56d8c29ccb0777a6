#include "engine/stage.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/layer_cost.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using kernels::Float32;
using partition::AlignTensor;
using schedule::AlignBlock;

// More than any layer has; keeps the random streams of different layers' parameters apart.
constexpr uint64_t kStreamsPerLayer = 1024;

void Initialize(const Init& init, uint64_t seed, uint64_t stream, const Tensor& value) {
  const auto values = absl::MakeSpan(value.f32(), static_cast<size_t>(value.elements()));
  switch (init.kind) {
    case Init::Kind::kConstant:
      std::fill(values.begin(), values.end(), init.a);
      return;
    case Init::Kind::kNormal:
      base::RandomStream(seed, stream).FillNormal(init.a, init.b, values);
      return;
    case Init::Kind::kUniform:
      base::RandomStream(seed, stream).FillUniform(init.a, init.b, values);
      return;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Stage>> Stage::Create(kernels::Device& device, const Model& model,
                                                     const StageOptions& options) {
  const auto first = static_cast<size_t>(options.first_layer);
  const auto count = static_cast<size_t>(options.last_layer - options.first_layer + 1);
  ASSIGN_OR_RETURN(Chain chain,
                   Chain::Prepare(absl::MakeConstSpan(model.layers).subspan(first, count),
                                  LayerContext{device, options.micro_batch_rows, options.input},
                                  options.splits_backward, options.first_layer));
  std::unique_ptr<Stage> stage(new Stage(device, options, model.loss, std::move(chain)));
  if (options.is_last) RETURN_IF_ERROR(stage->PrepareLoss());
  stage->ComputeMemory();
  return stage;
}

Stage::Stage(kernels::Device& device, const StageOptions& options, LossKind loss, Chain chain)
    : device_(device), options_(options), loss_kind_(loss), chain_(std::move(chain)) {
  for (int i = 0; i < chain_.size(); ++i) {
    const int layer = options_.first_layer + i;
    uint64_t random_stream = static_cast<uint64_t>(layer) * kStreamsPerLayer;
    for (const ParameterSpec& spec : chain_.spec(i).parameters) {
      parameters_.push_back({.name = absl::StrCat("layer ", layer, ": ", spec.name),
                             .spec = spec,
                             .random_stream = random_stream++});
      parameter_count_ += spec.shape.elements();
    }
  }
}

absl::Status Stage::PrepareLoss() {
  ASSIGN_OR_RETURN(loss_, device_.ops().CreateLoss(
                              loss_kind_, {options_.micro_batch_rows, chain_.output().elements()}));
  return absl::OkStatus();
}

void Stage::ComputeMemory() {
  const int64_t rows = options_.micro_batch_rows;
  memory_.workspace_bytes = chain_.workspace_bytes();
  for (int i = 0; i < chain_.size(); ++i) {
    const ParameterBytes bytes = BytesOfParameters(chain_.spec(i), options_.optimizer);
    memory_.parameter_bytes += bytes.parameters;
    memory_.gradient_bytes += bytes.parameters;
    memory_.optimizer_bytes += bytes.optimizer;
    memory_.other_resident_bytes += bytes.norms;
  }
  memory_.input_bytes = ActivationBytes(options_.input, rows);
  memory_.input_last_use = chain_.spec(0).input_last_use;
  memory_.output_bytes = ActivationBytes(chain_.output(), rows);
  const LayerSpec& last = chain_.spec(chain_.size() - 1);
  memory_.output_last_use = last.output_last_use;
  memory_.stash_bytes = chain_.stash_bytes();
  memory_.weight_stash_bytes = chain_.weight_stash_bytes();
  memory_.gradient_stash_bytes = chain_.gradient_stash_bytes();
  memory_.output_gradient_bytes = memory_.output_bytes;
  memory_.output_gradient_last_use = last.output_gradient_last_use;
  memory_.input_gradient_bytes = options_.is_first ? 0 : memory_.input_bytes;
  if (options_.is_last) {
    const partition::LossMemory loss = BytesOfLoss(rows, options_.micro_batches);
    memory_.workspace_bytes = std::max(memory_.workspace_bytes, loss.workspace_bytes);
    memory_.other_resident_bytes += loss.resident_bytes;
  }
}

void Stage::Place(std::byte* resident, uint64_t seed) {
  std::byte* values = resident;
  std::byte* gradients = values + AlignBlock(memory_.parameter_bytes);
  std::byte* states = gradients + AlignBlock(memory_.gradient_bytes);
  std::byte* others = states + AlignBlock(memory_.optimizer_bytes);
  const auto take = [](std::byte*& area, int64_t bytes) {
    return std::exchange(area, area + AlignTensor(bytes));
  };
  for (int layer = 0; layer < chain_.size(); ++layer) {
    std::byte* norm = others;
    for (int i = chain_.first_parameter(layer); i < chain_.first_parameter(layer + 1); ++i) {
      Parameter& parameter = parameters_[static_cast<size_t>(i)];
      const Shape& shape = parameter.spec.shape;
      const int64_t bytes = Float32(nullptr, shape).bytes();
      parameter.value = Float32(take(values, bytes), shape);
      parameter.gradient = Float32(take(gradients, bytes), shape);
      for (int state = 0; state < options_.optimizer.states(); ++state) {
        parameter.states.push_back(Float32(take(states, bytes), shape));
      }
      parameter.squared_norm = {norm, DType::kFloat64, Shape{1}};
      norm += SizeOf(DType::kFloat64);
      Initialize(parameter.spec.init, seed, parameter.random_stream, parameter.value);
      values_.push_back(parameter.value);
      gradients_.push_back(parameter.gradient);
    }
    others += BytesOfParameters(chain_.spec(layer), options_.optimizer).norms;
  }
  results_ = {others, DType::kFloat64, Shape{options_.micro_batches, 2}};
}

LayerArgs Stage::Args(const StageBlocks& blocks) const {
  const int64_t rows = options_.micro_batch_rows;
  const auto tensor = [&](std::byte* data, const Shape& sample) {
    return data == nullptr ? Tensor{} : Float32(data, sample.Batched(rows));
  };
  return {.stream = device_.stream(),
          .x = tensor(blocks.input, options_.input),
          .y = tensor(blocks.output, chain_.output()),
          .dx = tensor(blocks.input_gradient, options_.input),
          .dy = tensor(blocks.output_gradient, chain_.output()),
          .parameters = values_,
          .gradients = gradients_,
          .stash = blocks.stash,
          .weight_stash = blocks.weight_stash,
          .gradient_stash = blocks.gradient_stash,
          .workspace = blocks.workspace};
}

absl::Status Stage::Forward(const StageBlocks& blocks, const Batch& batch, MicroBatch micro_batch) {
  if (options_.is_first) {
    const int64_t features = options_.input.elements();
    auto* row_data = reinterpret_cast<float*>(blocks.input);
    const int64_t begin = micro_batch.value() * options_.micro_batch_rows;
    for (int64_t i = begin; i < begin + options_.micro_batch_rows; ++i, row_data += features) {
      const auto row = absl::MakeSpan(row_data, static_cast<size_t>(features));
      if (i < static_cast<int64_t>(batch.rows.size())) {
        batch.data->CopyFeatures(batch.rows[static_cast<size_t>(i)], row);
      } else {
        std::fill(row.begin(), row.end(), 0.0F);
      }
    }
  }
  RETURN_IF_ERROR(chain_.Forward(Args(blocks)));
  return options_.is_last ? ComputeLoss(blocks, batch, micro_batch) : absl::OkStatus();
}

absl::Status Stage::ComputeLoss(const StageBlocks& blocks, const Batch& batch,
                                MicroBatch micro_batch) {
  const int64_t rows = options_.micro_batch_rows;
  const int64_t begin = micro_batch.value() * rows;
  const auto all_rows = static_cast<int64_t>(batch.rows.size());
  const int64_t valid_rows = std::clamp<int64_t>(all_rows - begin, 0, rows);
  // The layers are done with the workspace.
  const Tensor labels{blocks.workspace, DType::kInt32, Shape{rows}};
  for (int64_t i = 0; i < valid_rows; ++i) {
    labels.i32()[i] = batch.data->label(batch.rows[static_cast<size_t>(begin + i)]);
  }
  const LayerArgs args = Args(blocks);
  const Tensor result{results_.f64() + 2 * micro_batch.value(), DType::kFloat64, Shape{2}};
  const float scale = 1.0F / static_cast<float>(std::max<int64_t>(all_rows, 1));
  return loss_->Compute(device_.stream(), args.y, labels, valid_rows, scale, args.dy, result);
}

absl::Status Stage::BackwardInput(const StageBlocks& blocks) {
  return chain_.BackwardInput(Args(blocks));
}

absl::Status Stage::BackwardWeight(const StageBlocks& blocks, MicroBatch micro_batch,
                                   const UpdateStep* update) {
  LayerArgs args = Args(blocks);
  args.accumulate = micro_batch.value() > 0;
  return chain_.BackwardWeight(args, [&](int layer) {
    return update == nullptr ? absl::OkStatus() : UpdateLayer(layer, *update);
  });
}

absl::Status Stage::Backward(const StageBlocks& blocks, MicroBatch micro_batch,
                             const UpdateStep* update) {
  LayerArgs args = Args(blocks);
  args.accumulate = micro_batch.value() > 0;
  return chain_.Backward(args, [&](int layer) {
    return update == nullptr ? absl::OkStatus() : UpdateLayer(layer, *update);
  });
}

absl::Status Stage::UpdateLayer(int layer, const UpdateStep& update) {
  for (int i = chain_.first_parameter(layer); i < chain_.first_parameter(layer + 1); ++i) {
    const Parameter& parameter = parameters_[static_cast<size_t>(i)];
    RETURN_IF_ERROR(UpdateParameter(options_.optimizer, update, parameter.spec.decays, device_,
                                    parameter.value, parameter.gradient, parameter.states));
  }
  return absl::OkStatus();
}

absl::Status Stage::Update(const UpdateStep& update) {
  for (int layer = chain_.size() - 1; layer >= 0; --layer) {
    RETURN_IF_ERROR(UpdateLayer(layer, update));
  }
  return absl::OkStatus();
}

absl::Status Stage::SquaredNorms(absl::Span<double> norms) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    RETURN_IF_ERROR(device_.ops().optimizer().SquaredNorm(device_.stream(), parameter.gradient,
                                                          parameter.squared_norm));
    norms[i] = *parameter.squared_norm.f64();
  }
  return absl::OkStatus();
}

LossResult Stage::Result(MicroBatch micro_batch) const {
  const double* const result = results_.f64() + 2 * micro_batch.value();
  return {result[0], static_cast<int64_t>(result[1])};
}

}  // namespace stagecoach::engine
