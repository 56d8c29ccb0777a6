#include "tests/engine/nn/chain_on_device.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "tests/testing/finite_difference.h"
#include "tests/testing/random_tensor.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/tolerance.h"

namespace stagecoach::engine {
namespace {

using ::stagecoach::testing::CentralDifferences;
using ::stagecoach::testing::Gamma;
using ::stagecoach::testing::RandomLabels;
using ::stagecoach::testing::RandomUniform;
using ::stagecoach::testing::TestDevice;

constexpr int64_t kGuardBytes = 256;
constexpr std::byte kFill{0xFF};  // NaN when read as float; TestDevice fills with it too

void Fill(void* memory, int64_t bytes) {
  std::memset(memory, std::to_integer<int>(kFill), static_cast<size_t>(bytes));
}

std::vector<double>::const_iterator CopyTo(const Tensor& tensor,
                                           std::vector<double>::const_iterator from) {
  for (int64_t i = 0; i < tensor.elements(); ++i, ++from) {
    tensor.f32()[i] = static_cast<float>(*from);
  }
  return from;
}

}  // namespace

ChainOnDevice::Area::Area(TestDevice& device, int64_t bytes)
    : bytes_(bytes), front_(device.Workspace(kGuardBytes + bytes)) {}

std::byte* ChainOnDevice::Area::data() const {
  return bytes_ == 0 ? nullptr : front_ + kGuardBytes;
}

void ChainOnDevice::Area::Poison() { Fill(front_ + kGuardBytes, bytes_); }

bool ChainOnDevice::Area::front_is_intact() const {
  return std::all_of(front_, front_ + kGuardBytes, [](std::byte b) { return b == kFill; });
}

ChainOnDevice::InFlight::InFlight(TestDevice& device, const Sequential& chain, int64_t number,
                                  const Tensor& x_in)
    : numbers{.step = 1, .first_sample = number * kRows},
      x(x_in),
      y(device.Result(chain.output().Batched(kRows))),
      dx(x.dtype == kernels::DType::kInt32 ? Tensor{} : device.Result(x.shape)),
      dy(device.Operand(y.shape, RandomUniform(-1.0F, 1.0F, y.elements(), /*stream=*/900))),
      stash(device, chain.memory().stash_bytes),
      weight_stash(device, chain.memory().weight_stash_bytes),
      gradient_stash(device, chain.memory().gradient_stash_bytes) {}

namespace {

absl::StatusOr<Skips> SkipsOf(const Network& network, LayerContext context) {
  ASSIGN_OR_RETURN(Skips skips,
                   Skips::Create(network.skips, static_cast<int>(network.layers.size()),
                                 context.rows, context.device.activation_type()));
  for (size_t i = 0; i < network.layers.size() && !network.skips.empty(); ++i) {
    context.skip = skips.ReadBy(static_cast<int>(i));
    ASSIGN_OR_RETURN(const PreparedLayer prepared, PrepareLayer(network.layers[i], context));
    context.input = prepared.spec.output;
    skips.SetOutput(static_cast<int>(i), context.input);
  }
  return skips;
}

}  // namespace

ChainOnDevice::ChainOnDevice(const Network& network, bool splits_backward,
                             absl::Span<const int> recomputed)
    : splits_backward_(splits_backward),
      bias_offset_(network.bias_offset),
      ids_(network.ids),
      spreads_x_(network.spreads_x) {
  STAGECOACH_CHECK_OK(device_.Run([&](kernels::Stream&) -> absl::Status {
    const LayerContext context{
        .device = device_.device(), .rows = kRows, .input = network.input, .vocabulary = ids_};
    ASSIGN_OR_RETURN(const Skips skips, SkipsOf(network, context));
    ASSIGN_OR_RETURN(chain_,
                     Sequential::Prepare(network.layers, context, /*first_index=*/0, skips));
    chain_->LayOut({.splits_backward = splits_backward}, {}, recomputed);
    return absl::OkStatus();
  }));
  for (int i = 0; i < chain_->size(); ++i) {
    for (const ParameterSpec& spec : chain_->spec(i).parameters) {
      parameters_.push_back(device_.Result(spec.shape));
      gradients_.push_back(device_.Result(spec.shape));
      specs_.push_back(spec);
    }
  }
  workspace_.emplace(device_, chain_->memory().workspace_bytes);
  AddMicroBatch();
}

ChainOnDevice::~ChainOnDevice() {
  EXPECT_TRUE(workspace_->front_is_intact()) << "written before the workspace";
  for (const InFlight& m : in_flight_) {
    EXPECT_TRUE(m.stash.front_is_intact()) << "written before the stash";
    EXPECT_TRUE(m.weight_stash.front_is_intact()) << "written before the weight stash";
    EXPECT_TRUE(m.gradient_stash.front_is_intact()) << "written before the gradient stash";
  }
}

std::vector<double> ChainOnDevice::RandomVariables() const {
  std::vector<double> variables;
  // Appends values uniform in +-`amplitude` around an offset whose sign may change from one to the
  // next.
  const auto append = [&](const Tensor& tensor, float amplitude, float offset, bool alternates) {
    for (float value : RandomUniform(-amplitude, amplitude, tensor.elements(), variables.size())) {
      variables.push_back(static_cast<double>(value + offset));
      if (alternates) offset = -offset;
    }
  };
  if (ids_ == 0) append(at(0).x, spreads_x_ ? 0.02F : 1.0F, 0.0F, false);
  for (size_t i = 0; spreads_x_ && i < variables.size(); ++i) {
    variables[i] += 0.3 * (static_cast<double>(i * 5 % 16) - 7.5);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (specs_[i].update.is_average()) continue;
    const bool is_bias = absl::EndsWith(specs_[i].name, "bias");
    const bool is_gamma = specs_[i].init == Init::Constant(1.0F);
    append(parameters_[i], 0.3F, is_bias ? bias_offset_ : is_gamma ? 1.0F : 0.0F, is_bias);
  }
  return variables;
}

void ChainOnDevice::SetVariables(const std::vector<double>& variables) {
  SetInput(0, variables);
  auto next = variables.begin() + input_variables();
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (!specs_[i].update.is_average()) next = CopyTo(parameters_[i], next);
  }
  ASSERT_EQ(next, variables.end());
}

void ChainOnDevice::SetInput(size_t micro_batch, const std::vector<double>& variables) {
  if (ids_ == 0) CopyTo(at(micro_batch).x, variables.begin());
}

size_t ChainOnDevice::AddMicroBatch() {
  const Shape shape = chain_->input(0).Batched(kRows);
  Tensor x = device_.Result(shape, ids_ > 0 ? kernels::DType::kInt32 : kernels::DType::kFloat32);
  if (ids_ > 0) {
    const auto ids = RandomLabels(shape.elements(), ids_, /*stream=*/in_flight_.size());
    std::copy(ids.begin(), ids.end(), x.i32());
  }
  in_flight_.emplace_back(device_, *chain_, static_cast<int64_t>(in_flight_.size()), x);
  return in_flight_.size() - 1;
}

void ChainOnDevice::Forward(size_t micro_batch) {
  const InFlight& m = at(micro_batch);
  workspace_->Poison();
  EXPECT_OK(device_.Run([&](kernels::Stream& stream) {
    return chain_->Forward({.stream = stream,
                            .call = CallOf(micro_batch),
                            .x = m.x,
                            .y = m.y,
                            .parameters = parameters_,
                            .stash = m.stash.data(),
                            .weight_stash = m.weight_stash.data(),
                            .workspace = workspace_->data()});
  }));
}

CallContext ChainOnDevice::CallOf(size_t micro_batch) const {
  return {.is_training = true, .seed = 5, .numbers = &at(micro_batch).numbers};
}

LayerArgs ChainOnDevice::BackwardArgs(kernels::Stream& stream, size_t micro_batch, LastUse op,
                                      const BackwardOptions& options) {
  const InFlight& m = at(micro_batch);
  const auto if_live = [op](const Tensor& tensor, LastUse last_use) {
    return last_use >= op ? tensor : Tensor{};
  };
  const bool computes_dx = op == LastUse::kBackwardInput;
  const bool computes_dw = !splits_backward_ || !computes_dx;
  workspace_->Poison();
  return {.stream = stream,
          .call = CallOf(micro_batch),
          .x = if_live(m.x, chain_->memory().input_last_use),
          .y = if_live(m.y, chain_->memory().output_last_use),
          .dx = computes_dx && options.want_dx ? m.dx : Tensor{},
          .dy = if_live(m.dy, chain_->memory().output_gradient_last_use),
          .parameters = parameters_,
          .gradients = computes_dw ? absl::MakeConstSpan(gradients_) : absl::Span<const Tensor>(),
          .accumulate = options.accumulate,
          .stash = computes_dx ? m.stash.data() : nullptr,
          .weight_stash = m.weight_stash.data(),
          .gradient_stash = m.gradient_stash.data(),
          .workspace = workspace_->data()};
}

void ChainOnDevice::Backward(size_t micro_batch, const BackwardOptions& options) {
  EXPECT_OK(device_.Run([&](kernels::Stream& stream) -> absl::Status {
    const auto after_layer = [&](int layer) { return PoisonParameters(layer); };
    const LayerArgs args = BackwardArgs(stream, micro_batch, LastUse::kBackwardInput, options);
    if (!splits_backward_) return chain_->Backward(args, after_layer);
    RETURN_IF_ERROR(chain_->BackwardInput(args));
    return chain_->BackwardWeight(
        BackwardArgs(stream, micro_batch, LastUse::kBackwardWeight, options), after_layer);
  }));
}

absl::Status ChainOnDevice::PoisonParameters(int layer) {
  for (int i = chain_->first_parameter(layer); i < chain_->first_parameter(layer + 1); ++i) {
    const Tensor& parameter = parameters_[static_cast<size_t>(i)];
    Fill(parameter.data, parameter.bytes());
  }
  return absl::OkStatus();
}

double ChainOnDevice::WeightedSum(const std::vector<double>& variables) {
  SetVariables(variables);
  Forward();
  double sum = 0.0;
  for (int64_t i = 0; i < at(0).y.elements(); ++i) {
    sum += static_cast<double>(at(0).dy.f32()[i]) * static_cast<double>(at(0).y.f32()[i]);
  }
  return sum;
}

std::vector<double> ChainOnDevice::Gradients() const {
  std::vector<double> all;
  if (ids_ == 0) all = TestDevice::Values(at(0).dx);
  for (size_t i = 0; i < gradients_.size(); ++i) {
    if (specs_[i].update.is_average()) continue;
    for (double value : TestDevice::Values(gradients_[i])) all.push_back(value);
  }
  return all;
}

std::vector<double> ChainOnDevice::ParameterGradients() const {
  std::vector<double> all;
  for (const Tensor& gradient : gradients_) {
    for (double value : TestDevice::Values(gradient)) all.push_back(value);
  }
  return all;
}

void ChainOnDevice::SetParameterGradients(const std::vector<double>& values) {
  auto next = values.begin();
  for (const Tensor& gradient : gradients_) next = CopyTo(gradient, next);
}

double ChainOnDevice::SumOfMagnitudesOfDy() const {
  double sum = 0.0;
  for (double value : TestDevice::Values(at(0).dy)) sum += std::fabs(value);
  return sum;
}

namespace {

// CentralDifferences steps by 2^-10, which is for double precision; with variables in units of 1/64
// that is a step of 1/16.
constexpr double kScale = 64.0;
constexpr double kStep = kScale * 0x1p-10;

}  // namespace

std::vector<double> NumericalGradients(ChainOnDevice& chain, const std::vector<double>& variables) {
  const auto times = [](std::vector<double> values, double factor) {
    for (double& value : values) value *= factor;
    return values;
  };
  return times(CentralDifferences(
                   [&](const std::vector<double>& scaled) {
                     return chain.WeightedSum(times(scaled, kScale));
                   },
                   times(variables, 1.0 / kScale)),
               1.0 / kScale);
}

// No path from a variable to y has more than 64
// roundings here, and y stays below 8 with all terms taken by their magnitude, so each of the four
// evaluations is off by at most Gamma(64) 8 sum|dy|; together they weigh 18 / (12 step). The
// truncation is step^4 / 30 times the fifth derivative, which is below 100 per unit of dy.
double NumericalBound(const ChainOnDevice& chain) {
  const double evaluation = Gamma(64) * 8.0;
  const double truncation = std::pow(kStep, 4) / 30.0 * 100.0;
  return (18.0 / (12.0 * kStep) * evaluation + truncation) * chain.SumOfMagnitudesOfDy();
}

}  // namespace stagecoach::engine
