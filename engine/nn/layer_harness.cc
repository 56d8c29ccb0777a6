#include "engine/nn/layer_harness.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/catch_exceptions.h"
#include "base/random.h"
#include "base/status_macros.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr int kGuard = 0xA5;

}  // namespace

// ---- GuardedArea ----

absl::StatusOr<GuardedArea> GuardedArea::Create(kernels::Device& device, std::string name,
                                                int64_t bytes) {
  ASSIGN_OR_RETURN(kernels::Buffer buffer, device.AllocateTable(bytes + 2 * kGuardBytes));
  std::memset(buffer.data(), kGuard, static_cast<size_t>(buffer.bytes()));
  return GuardedArea(std::move(name), std::move(buffer), bytes);
}

GuardedArea::GuardedArea(std::string name, kernels::Buffer buffer, int64_t bytes)
    : name_(std::move(name)), buffer_(std::move(buffer)), bytes_(bytes) {}

std::byte* GuardedArea::data() const {
  return bytes_ == 0 ? nullptr : buffer_.data() + kGuardBytes;
}

absl::Span<float> GuardedArea::floats() const {
  return {reinterpret_cast<float*>(data()), static_cast<size_t>(bytes_) / sizeof(float)};
}

std::string GuardedArea::Bytes() const {
  return {reinterpret_cast<const char*>(buffer_.data() + kGuardBytes), static_cast<size_t>(bytes_)};
}

bool GuardedArea::HasIntactGuards() const {
  const auto is_guard = [](std::byte byte) { return byte == std::byte{kGuard}; };
  const std::byte* const first = buffer_.data();
  return std::all_of(first, first + kGuardBytes, is_guard) &&
         std::all_of(first + kGuardBytes + bytes_, first + 2 * kGuardBytes + bytes_, is_guard);
}

void GuardedArea::Fill(int byte) {
  std::memset(buffer_.data() + kGuardBytes, byte, static_cast<size_t>(bytes_));
}

// ---- LayerHarness ----

LayerHarness::LayerHarness(const LayerFactory& factory, const LayerCheck& check,
                           kernels::Device& device)
    : factory_(factory), check_(check), device_(device) {}

absl::Status LayerHarness::Prepare() {
  ASSIGN_OR_RETURN(PreparedLayer prepared,
                   PrepareLayer(factory_, {.device = device_,
                                           .rows = check_.rows,
                                           .input = check_.input,
                                           .vocabulary = check_.vocabulary}));
  layer_ = std::move(prepared.layer);
  spec_ = std::move(prepared.spec);
  if (spec_.takes_skip || spec_.computes_loss) {
    return absl::InvalidArgumentError(
        absl::StrCat("the layer ", spec_.takes_skip ? "takes a skip" : "computes the loss",
                     ": CheckLayer runs a layer by itself"));
  }
  ASSIGN_OR_RETURN(GuardedArea workspace,
                   GuardedArea::Create(device_, "the workspace", spec_.memory.workspace_bytes));
  workspace_.emplace(std::move(workspace));
  for (size_t i = 0; i < spec_.parameters.size(); ++i) {
    const ParameterSpec& parameter = spec_.parameters[i];
    const int64_t bytes = parameter.shape.elements() * SizeOf(kernels::DType::kFloat32);
    ASSIGN_OR_RETURN(GuardedArea values,
                     GuardedArea::Create(device_, "parameter " + parameter.name, bytes));
    ASSIGN_OR_RETURN(GuardedArea gradient,
                     GuardedArea::Create(device_, "the gradient of " + parameter.name, bytes));
    // Values lie around the initial ones, but are not all alike.
    const float center = parameter.init.kind == Init::Kind::kConstant ? parameter.init.a : 0.0F;
    Draw(center - 0.5F, center + 0.5F, values.floats());
    parameters_.push_back(std::move(values));
    gradients_.push_back(std::move(gradient));
  }
  for (int64_t i = 0; i < 2; ++i) RETURN_IF_ERROR(AddMicroBatch(i));
  return absl::OkStatus();
}

absl::Status LayerHarness::AddMicroBatch(int64_t number) {
  MicroBatch& own = micro_batches_.emplace_back();
  own.numbers = {.step = 1, .first_sample = number * check_.rows};
  const int64_t x_bytes = 4 * XShape().elements(), y_bytes = 4 * YShape().elements();
  const std::pair<const char*, int64_t> sizes[] = {
      {"x", x_bytes},
      {"y", y_bytes},
      {"dx", check_.vocabulary > 0 ? 0 : x_bytes},
      {"dy", y_bytes},
      {"the stash", spec_.memory.stash_bytes},
      {"the weight stash", spec_.memory.weight_stash_bytes},
      {"the gradient stash", spec_.memory.gradient_stash_bytes}};
  for (const auto& [name, bytes] : sizes) {
    ASSIGN_OR_RETURN(GuardedArea area, GuardedArea::Create(device_, name, bytes));
    own.areas.push_back(std::move(area));
  }
  if (check_.vocabulary > 0) {
    const base::RandomStream random(check_.seed, streams_++);
    auto* const ids = reinterpret_cast<int32_t*>(own.x().data());
    for (int64_t i = 0; i < XShape().elements(); ++i) {
      ids[i] = static_cast<int32_t>(
          random.Below(static_cast<uint64_t>(i), static_cast<uint64_t>(check_.vocabulary)));
    }
  } else {
    Draw(-1.0F, 1.0F, own.x().floats());
  }
  Draw(-1.0F, 1.0F, own.dy().floats());
  return absl::OkStatus();
}

void LayerHarness::Draw(float low, float high, absl::Span<float> values) {
  base::RandomStream(check_.seed, streams_++).FillUniform(low, high, values);
}

LayerArgs LayerHarness::ArgsFor(MicroBatch& own) {
  parameter_tensors_.clear();
  gradient_tensors_.clear();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const Shape& shape = spec_.parameters[i].shape;
    parameter_tensors_.push_back(kernels::Float32(parameters_[i].data(), shape));
    gradient_tensors_.push_back(kernels::Float32(gradients_[i].data(), shape));
  }
  const kernels::DType x_type = InputType(device_, check_.vocabulary > 0);
  LayerArgs args{.stream = device_.stream(),
                 .call = {.is_training = true, .seed = check_.seed, .numbers = &own.numbers},
                 .x = {own.x().data(), x_type, XShape()},
                 .y = kernels::Float32(own.y().data(), YShape()),
                 .parameters = parameter_tensors_};
  workspace_->Fill(workspace_fill_);
  args.workspace = workspace_->data();
  return args;
}

absl::Status LayerHarness::Perform(const char* operation, MicroBatch& own, const LayerArgs& args,
                                   absl::Status (Layer::*call)(const LayerArgs&),
                                   std::vector<const GuardedArea*> written) {
  written.push_back(&*workspace_);
  std::vector<std::pair<const GuardedArea*, Bytes>> before;
  ForEachArea(own, [&](const GuardedArea& area) {
    if (std::find(written.begin(), written.end(), &area) == written.end()) {
      before.emplace_back(&area, area.Bytes());
    }
  });
  RETURN_IF_ERROR(base::CatchExceptions(operation, [&] { return ((*layer_).*call)(args); }));
  for (const auto& [area, bytes] : before) {
    if (area->Bytes() != bytes) {
      return absl::FailedPreconditionError(
          absl::StrCat(operation, " changes ", area->name(), ", which it may only read"));
    }
  }
  std::string outside;
  ForEachArea(own, [&](const GuardedArea& area) {
    if (!area.HasIntactGuards()) outside = area.name();
  });
  if (outside.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(operation, " writes outside of ", outside));
}

void LayerHarness::ForEachArea(MicroBatch& own,
                               const std::function<void(const GuardedArea&)>& function) const {
  for (const GuardedArea& area : own.areas) function(area);
  for (const GuardedArea& area : parameters_) function(area);
  for (const GuardedArea& area : gradients_) function(area);
  function(*workspace_);
}

absl::Status LayerHarness::Forward(size_t number) {
  MicroBatch& own = micro_batches_[number];
  LayerArgs args = ArgsFor(own);
  args.stash = own.stash().data();
  args.weight_stash = own.weight_stash().data();
  return Perform("Forward", own, args, &Layer::Forward,
                 {&own.y(), &own.stash(), &own.weight_stash()});
}

LayerArgs LayerHarness::BackwardArgs(MicroBatch& own) {
  LayerArgs args = ArgsFor(own);
  args.dy = kernels::Float32(own.dy().data(), YShape());
  args.weight_stash = own.weight_stash().data();
  args.gradient_stash = own.gradient_stash().data();
  return args;
}

absl::Status LayerHarness::BackwardInput(size_t number, bool wants_dx) {
  MicroBatch& own = micro_batches_[number];
  LayerArgs args = BackwardArgs(own);
  args.stash = own.stash().data();
  if (wants_dx && check_.vocabulary == 0) args.dx = kernels::Float32(own.dx().data(), XShape());
  // The stashes may be overwritten by the operation that reads them last.
  return Perform("BackwardInput", own, args, &Layer::BackwardInput,
                 {&own.dx(), &own.stash(), &own.weight_stash(), &own.gradient_stash()});
}

absl::Status LayerHarness::BackwardWeight(size_t number, bool accumulate) {
  MicroBatch& own = micro_batches_[number];
  LayerArgs args = BackwardArgs(own);
  args.stash = own.stash().data();  // no longer part of its operands; passed to detect a read
  args.gradients = gradient_tensors_;
  args.accumulate = accumulate;
  std::vector<const GuardedArea*> written = {&own.weight_stash(), &own.gradient_stash()};
  for (const GuardedArea& area : gradients_) written.push_back(&area);
  return Perform("BackwardWeight", own, args, &Layer::BackwardWeight, std::move(written));
}

absl::Status LayerHarness::Backward(size_t number) {
  MicroBatch& own = micro_batches_[number];
  LayerArgs args = BackwardArgs(own);
  args.stash = own.stash().data();
  if (check_.vocabulary == 0) args.dx = kernels::Float32(own.dx().data(), XShape());
  args.gradients = gradient_tensors_;
  std::vector<const GuardedArea*> written = {&own.dx(), &own.stash(), &own.weight_stash(),
                                             &own.gradient_stash()};
  for (const GuardedArea& area : gradients_) written.push_back(&area);
  return Perform("Backward", own, args, &Layer::Backward, std::move(written));
}

absl::StatusOr<LayerHarness::Results> LayerHarness::Compute(size_t number,
                                                            std::optional<Operand> dead_in_both,
                                                            std::optional<Operand> dead_in_weight) {
  MicroBatch& own = micro_batches_[number];
  const auto poison = [&own](std::optional<Operand> dead) {
    GuardedArea* const areas[] = {&own.x(), &own.y(), &own.dy(), &own.stash()};  // index: Operand
    if (dead.has_value()) areas[static_cast<size_t>(*dead)]->Fill(kNotANumber);
  };
  const Bytes x = own.x().Bytes(), dy = own.dy().Bytes();
  RETURN_IF_ERROR(Forward(number));
  const Bytes y = own.y().Bytes();
  poison(dead_in_both);
  RETURN_IF_ERROR(BackwardInput(number));
  poison(dead_in_weight);
  if (!parameters_.empty()) RETURN_IF_ERROR(BackwardWeight(number));
  std::memcpy(own.x().data(), x.data(), x.size());
  std::memcpy(own.dy().data(), dy.data(), dy.size());
  return ResultsOf(number, y);
}

LayerHarness::Results LayerHarness::ResultsOf(size_t number, Bytes y) {
  Results results = {.y = std::move(y), .dx = micro_batches_[number].dx().Bytes(), .gradients = {}};
  for (const GuardedArea& gradient : gradients_) results.gradients.push_back(gradient.Bytes());
  return results;
}

}  // namespace stagecoach::engine
