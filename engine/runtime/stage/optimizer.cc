#include "engine/runtime/stage/optimizer.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {
namespace {

absl::Status UpdateByAdamW(const Optimizer& optimizer, const UpdateStep& step,
                           kernels::Device& device, const kernels::ParameterGroup& group) {
  return device.ops().optimizer().AdamW(device.stream(),
                                        {.learning_rate = step.learning_rate,
                                         .beta1 = optimizer.beta1,
                                         .beta2 = optimizer.beta2,
                                         .epsilon = optimizer.epsilon,
                                         .weight_decay = optimizer.weight_decay,
                                         .gradient_scale = step.gradient_scale,
                                         .step = step.step,
                                         .ema_share = optimizer.EmaShareAt(step.step)},
                                        group);
}

absl::Status UpdateBySgd(const Optimizer& optimizer, const UpdateStep& step,
                         kernels::Device& device, const kernels::ParameterGroup& group) {
  return device.ops().optimizer().Sgd(device.stream(),
                                      {.learning_rate = step.learning_rate,
                                       .momentum = optimizer.momentum,
                                       .weight_decay = optimizer.weight_decay,
                                       .gradient_scale = step.gradient_scale,
                                       .ema_share = optimizer.EmaShareAt(step.step)},
                                      group);
}

}  // namespace

partition::Work Optimizer::StepWork(int64_t parameters) const {
  // Reads the gradient; reads and writes the parameter and each state.
  const double touched = 4.0 * (1 + 2 * (1 + states()));
  const auto n = static_cast<double>(parameters);
  return {.flops = 6.0 * (1 + states()) * n, .bytes = touched * n};
}

int Optimizer::states() const {
  return static_cast<int>(TypeOf(*this).states.size()) + (has_ema() ? 1 : 0);
}

float Optimizer::EmaShareAt(int64_t step) const {
  const auto t = static_cast<double>(step);
  return static_cast<float>(1.0 - std::min<double>(ema_decay, (1.0 + t) / (10.0 + t)));
}

const char* Optimizer::state_name(int state) const {
  if (has_ema() && state == ema_state()) return "ema";
  return TypeOf(*this).states[static_cast<size_t>(state)];
}

kernels::Tensor& StateOf(const Optimizer& optimizer, kernels::ParameterTensors& tensors,
                         int state) {
  const bool is_ema = optimizer.has_ema() && state == optimizer.ema_state();
  return is_ema ? tensors.ema : tensors.states[static_cast<size_t>(state)];
}

absl::Span<const OptimizerType> OptimizerTypes() {
  using Range = HyperParameter::Range;
  static const auto* const types = new std::vector<OptimizerType>{
      {.defaults = Optimizer::AdamW(),
       .name = "adamw",
       .states = {"exp_avg", "exp_avg_sq"},
       .hyper_parameters = {{"beta1", &Optimizer::beta1, Range::kFraction,
                             "decay rate of the first moment"},
                            {"beta2", &Optimizer::beta2, Range::kFraction,
                             "decay rate of the second moment"},
                            {"epsilon", &Optimizer::epsilon, Range::kPositive}},
       .learning_rate = 1e-3F,
       .rate_times_width = 4e-5F * 2304,  // tuned on the default network
       .update = UpdateByAdamW},
      {.defaults = Optimizer::Sgd(),
       .name = "sgd",
       .states = {"momentum_buffer"},
       .hyper_parameters = {{"momentum", &Optimizer::momentum, Range::kFraction, "momentum"}},
       .learning_rate = 0.01F,
       .update = UpdateBySgd}};
  return *types;
}

bool OptimizerType::Has(const HyperParameter& parameter) const {
  return std::any_of(hyper_parameters.begin(), hyper_parameters.end(),
                     [&](const HyperParameter& own) { return own.value == parameter.value; });
}

const OptimizerType& TypeOf(const Optimizer& optimizer) {
  return OptimizerTypes()[static_cast<size_t>(optimizer.kind)];
}

const OptimizerType* FindOptimizerType(absl::string_view name) {
  for (const OptimizerType& type : OptimizerTypes()) {
    if (name == type.name) return &type;
  }
  return nullptr;
}

std::string ListOptimizers(const HyperParameter* parameter) {
  std::vector<absl::string_view> names;
  for (const OptimizerType& type : OptimizerTypes()) {
    if (parameter == nullptr || type.Has(*parameter)) names.emplace_back(type.name);
  }
  return absl::StrJoin(names, " or ");
}

absl::Span<const HyperParameter> HyperParameters() {
  static const auto* const all = [] {
    auto* const parameters = new std::vector<HyperParameter>();
    for (const OptimizerType& type : OptimizerTypes()) {
      for (const HyperParameter& own : type.hyper_parameters) {
        const bool is_known =
            std::any_of(parameters->begin(), parameters->end(),
                        [&](const HyperParameter& other) { return other.value == own.value; });
        if (!is_known) parameters->push_back(own);
      }
    }
    return parameters;
  }();
  return *all;
}

absl::Status CheckOptimizer(const Optimizer& optimizer) {
  const auto check = [](absl::string_view name, float value, bool ok, const char* range) {
    return ok ? absl::OkStatus()
              : absl::InvalidArgumentError(
                    absl::StrCat("optimizer: ", name, " is ", value, ", must be ", range));
  };
  const auto non_negative = [&](const char* name, float value) {
    return check(name, value, value >= 0.0F && std::isfinite(value), "0 or more");
  };
  RETURN_IF_ERROR(non_negative("weight decay", optimizer.weight_decay));
  for (const HyperParameter& parameter : HyperParameters()) {
    const float value = optimizer.*parameter.value;
    RETURN_IF_ERROR(parameter.range == HyperParameter::Range::kPositive
                        ? check(parameter.name, value, value > 0.0F, "above 0")
                        : check(parameter.name, value, value >= 0.0F && value < 1.0F, "in [0, 1)"));
  }
  RETURN_IF_ERROR(check("EMA decay", optimizer.ema_decay,
                        optimizer.ema_decay >= 0.0F && optimizer.ema_decay < 1.0F, "in [0, 1)"));
  return non_negative("clip norm", optimizer.clip_norm);
}

absl::Status UpdateParameters(const Optimizer& optimizer, const UpdateStep& step,
                              kernels::Device& device, const kernels::ParameterGroup& group) {
  return TypeOf(optimizer).update(optimizer, step, device, group);
}

absl::Status CopyToAverages(kernels::Stream& stream,
                            absl::Span<const kernels::ParameterTensors> parameters) {
  for (const kernels::ParameterTensors& own : parameters) {
    if (own.ema.empty()) continue;
    RETURN_IF_ERROR(stream.Copy(own.ema.data, own.value.data, own.value.bytes()));
  }
  return absl::OkStatus();
}

absl::Status WarmUpUpdate(const Optimizer& optimizer, kernels::Device& device,
                          absl::Span<const kernels::ParameterTensors> parameters) {
  std::vector<kernels::ParameterTensors> updated;  // an average moves at any learning rate
  for (const kernels::ParameterTensors& tensors : parameters) {
    if (tensors.average.has_value()) continue;
    updated.push_back(tensors);
    updated.back().weight_decay.reset();  // the momentum of SGD would keep it
  }
  if (updated.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const auto group,
                   device.ops().optimizer().CreateGroup(device.stream(), updated));
  Optimizer still = optimizer;
  still.weight_decay = 0.0F;
  RETURN_IF_ERROR(UpdateParameters(still, {.step = 1, .learning_rate = 0.0F}, device, *group));
  return device.stream().Finish();  // before the group is destroyed
}

}  // namespace stagecoach::engine
