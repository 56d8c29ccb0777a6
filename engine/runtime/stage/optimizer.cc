#include "engine/runtime/stage/optimizer.h"

#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/ops/ops.h"

namespace stagecoach::engine {

partition::Work Optimizer::StepWork(int64_t parameters) const {
  // Reads the gradient; reads and writes the parameter and each state.
  const double touched = 4.0 * (1 + 2 * (1 + states()));
  const auto n = static_cast<double>(parameters);
  return {.flops = 6.0 * (1 + states()) * n, .bytes = touched * n};
}

const char* Optimizer::state_name(int state) const {
  if (kind == Kind::kSgd) return "momentum_buffer";
  return state == 0 ? "exp_avg" : "exp_avg_sq";
}

absl::Status CheckOptimizer(const Optimizer& optimizer) {
  const auto check = [](const char* name, float value, bool ok, const char* range) {
    return ok ? absl::OkStatus()
              : absl::InvalidArgumentError(
                    absl::StrCat("optimizer: ", name, " is ", value, ", must be ", range));
  };
  const auto unit = [](float value) { return value >= 0.0F && value < 1.0F; };
  const auto non_negative = [](float value) { return value >= 0.0F && std::isfinite(value); };
  for (const absl::Status& status :
       {check("weight decay", optimizer.weight_decay, non_negative(optimizer.weight_decay),
              "0 or more"),
        check("beta1", optimizer.beta1, unit(optimizer.beta1), "in [0, 1)"),
        check("beta2", optimizer.beta2, unit(optimizer.beta2), "in [0, 1)"),
        check("epsilon", optimizer.epsilon, optimizer.epsilon > 0.0F, "above 0"),
        check("momentum", optimizer.momentum, unit(optimizer.momentum), "in [0, 1)"),
        check("clip norm", optimizer.clip_norm, non_negative(optimizer.clip_norm), "0 or more")}) {
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status UpdateParameters(const Optimizer& optimizer, const UpdateStep& step,
                              kernels::Device& device, const kernels::ParameterGroup& group) {
  kernels::OptimizerOps& ops = device.ops().optimizer();
  switch (optimizer.kind) {
    case Optimizer::Kind::kAdamW:
      return ops.AdamW(device.stream(),
                       {.learning_rate = step.learning_rate,
                        .beta1 = optimizer.beta1,
                        .beta2 = optimizer.beta2,
                        .epsilon = optimizer.epsilon,
                        .weight_decay = optimizer.weight_decay,
                        .gradient_scale = step.gradient_scale,
                        .step = step.step},
                       group);
    case Optimizer::Kind::kSgd:
      return ops.Sgd(device.stream(),
                     {.learning_rate = step.learning_rate,
                      .momentum = optimizer.momentum,
                      .weight_decay = optimizer.weight_decay,
                      .gradient_scale = step.gradient_scale},
                     group);
  }
  return absl::InternalError("unknown optimizer");
}

absl::Status WarmUpUpdate(const Optimizer& optimizer, kernels::Device& device,
                          absl::Span<const kernels::ParameterTensors> parameters) {
  std::vector<kernels::ParameterTensors> updated;  // an average moves at any learning rate
  for (const kernels::ParameterTensors& tensors : parameters) {
    if (!tensors.average.has_value()) updated.push_back(tensors);
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
