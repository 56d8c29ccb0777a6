#include "engine/profile.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/layer_cost.h"
#include "engine/stage.h"
#include "kernels/cpu/cpu_device.h"
#include "partition/analytic.h"

namespace stagecoach::engine {
namespace {

using schedule::AlignBlock;

absl::StatusOr<std::unique_ptr<kernels::Device>> MakeDevice(const ProfileOptions& options) {
  return kernels::CreateCpuDevice({.threads = options.threads});
}

absl::Status Analyze(const Model& model, const ProfileOptions& options, kernels::Device& device,
                     ModelProfile& profile) {
  profile.loss = BytesOfLoss(options.micro_batch_rows, options.micro_batches);
  Shape input = model.input;
  for (const LayerFactory& factory : model.layers) {
    absl::StatusOr<LayerSpec> spec =
        factory()->Prepare(LayerContext{device, options.micro_batch_rows, input});
    if (!spec.ok()) {
      return base::Annotate(spec.status(), absl::StrCat("layer ", profile.layers.size()));
    }
    partition::LayerCost cost = CostOf(*spec, input, options.micro_batch_rows, options.optimizer);
    EstimateTimes({.forward = spec->forward,
                   .backward_input = spec->backward_input,
                   .backward_weight = spec->backward_weight,
                   .step = options.optimizer.StepWork(cost.parameters)},
                  partition::DeviceSpeed{}, cost);
    profile.layers.push_back(std::move(cost));
    profile.inputs.push_back(input);
    profile.parameter_tensors.push_back(static_cast<int>(spec->parameters.size()));
    input = spec->output;
  }
  profile.output = input;
  return absl::OkStatus();
}

double MedianNs(int repeats, absl::FunctionRef<absl::Status()> run, absl::Status& status) {
  std::vector<double> times;
  for (int i = 0; i <= repeats && status.ok(); ++i) {
    const auto start = std::chrono::steady_clock::now();
    status = run();
    const std::chrono::duration<double, std::nano> time = std::chrono::steady_clock::now() - start;
    if (i > 0) times.push_back(time.count());
  }
  if (times.empty()) return 0.0;
  const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
  std::nth_element(times.begin(), middle, times.end());
  return *middle;
}

// One layer as a stage of its own, with every block in a place of its own.
absl::Status MeasureLayer(const Model& model, int layer, const ProfileOptions& options, int repeats,
                          kernels::Device& device, ModelProfile& profile) {
  StageOptions stage_options{.id = StageId(0),
                             .first_layer = layer,
                             .last_layer = layer,
                             .splits_backward = true,
                             .input = profile.inputs[static_cast<size_t>(layer)],
                             .micro_batch_rows = options.micro_batch_rows,
                             .micro_batches = options.micro_batches,
                             .optimizer = options.optimizer};
  ASSIGN_OR_RETURN(const std::unique_ptr<Stage> stage, Stage::Create(device, model, stage_options));
  const schedule::StageMemory& memory = stage->memory();
  const int64_t resident = AlignBlock(memory.parameter_bytes) + AlignBlock(memory.gradient_bytes) +
                           AlignBlock(memory.optimizer_bytes) +
                           AlignBlock(memory.other_resident_bytes);
  const int64_t parts[] = {resident,
                           AlignBlock(memory.input_bytes),
                           AlignBlock(memory.output_bytes),
                           AlignBlock(memory.stash_bytes),
                           AlignBlock(memory.weight_stash_bytes),
                           AlignBlock(memory.gradient_stash_bytes),
                           AlignBlock(memory.output_gradient_bytes),
                           AlignBlock(memory.input_gradient_bytes),
                           AlignBlock(memory.workspace_bytes)};
  int64_t total = 0;
  for (int64_t part : parts) total += part;
  ASSIGN_OR_RETURN(const kernels::Buffer buffer, device.Allocate(total));
  std::byte* next = buffer.data();
  std::byte* at[std::size(parts)];
  for (size_t i = 0; i < std::size(parts); ++i) at[i] = std::exchange(next, next + parts[i]);
  stage->Place(at[0], /*seed=*/1);
  const StageBlocks blocks{.input = at[1],
                           .output = at[2],
                           .stash = at[3],
                           .weight_stash = at[4],
                           .gradient_stash = at[5],
                           .output_gradient = at[6],
                           .input_gradient = layer == 0 ? nullptr : at[7],
                           .workspace = at[8]};
  const auto fill = [](std::byte* data, int64_t bytes, uint64_t stream) {
    base::RandomStream(1, stream).FillUniform(
        -1.0F, 1.0F,
        absl::MakeSpan(reinterpret_cast<float*>(data), static_cast<size_t>(bytes) / 4));
  };
  fill(blocks.input, memory.input_bytes, 1);
  fill(blocks.output_gradient, memory.output_gradient_bytes, 2);

  // Micro-batch 1: most of a step's micro-batches add to the gradients.
  const MicroBatch micro_batch(1);
  absl::Status status;
  partition::LayerCost& cost = profile.layers[static_cast<size_t>(layer)];
  cost.forward_ns = MedianNs(
      repeats, [&] { return stage->Forward(blocks, {}, micro_batch); }, status);
  cost.backward_input_ns = MedianNs(
      repeats, [&] { return stage->BackwardInput(blocks); }, status);
  cost.backward_weight_ns = MedianNs(
      repeats, [&] { return stage->BackwardWeight(blocks, micro_batch, nullptr); }, status);
  cost.step_ns = MedianNs(
      repeats, [&] { return stage->Update(UpdateStep{}); }, status);
  return status;
}

}  // namespace

int64_t ModelProfile::parameters() const {
  int64_t sum = 0;
  for (const partition::LayerCost& layer : layers) sum += layer.parameters;
  return sum;
}

absl::StatusOr<ModelProfile> AnalyzeModel(const Model& model, const ProfileOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device, MakeDevice(options));
  ModelProfile profile;
  absl::Status status;
  device->stream().Run([&] { status = Analyze(model, options, *device, profile); });
  RETURN_IF_ERROR(status);
  return profile;
}

absl::StatusOr<ModelProfile> MeasureModel(const Model& model, const ProfileOptions& options,
                                          int repeats) {
  STAGECOACH_CHECK(repeats >= 1, "a measurement needs at least one run");
  ASSIGN_OR_RETURN(ModelProfile profile, AnalyzeModel(model, options));
  ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device, MakeDevice(options));
  absl::Status status;
  device->stream().Run([&] {
    for (int layer = 0; layer < model.num_layers() && status.ok(); ++layer) {
      status = MeasureLayer(model, layer, options, repeats, *device, profile);
    }
  });
  RETURN_IF_ERROR(status);
  return profile;
}

}  // namespace stagecoach::engine
