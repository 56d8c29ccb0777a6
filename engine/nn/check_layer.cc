#include "engine/nn/check_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/nn/last_use_checker.h"
#include "engine/nn/layer_harness.h"
#include "kernels/cpu/cpu_device.h"

namespace stagecoach::engine {
namespace {

using Bytes = LayerHarness::Bytes;
using Results = LayerHarness::Results;

constexpr int64_t kMostDifferences = 64;  // per tensor

absl::Status Wrong(const std::string& what) { return absl::FailedPreconditionError(what); }

class Checker {
 public:
  Checker(LayerHarness& trial, const LayerCheck& check) : trial_(trial), check_(check) {}

  absl::Status Run() {
    RETURN_IF_ERROR(trial_.Prepare());
    ASSIGN_OR_RETURN(const Results results, trial_.Compute(0));
    RETURN_IF_ERROR(CheckNumbers(results));
    RETURN_IF_ERROR(CheckRepeats(results));
    RETURN_IF_ERROR(CheckReads(results));
    RETURN_IF_ERROR(CheckGradients(results));
    RETURN_IF_ERROR(CheckAccumulates(results));
    RETURN_IF_ERROR(CheckJoined(results));
    RETURN_IF_ERROR(trial_.Forward(0));
    return trial_.BackwardInput(0, /*wants_dx=*/false);
  }

 private:
  absl::Status CheckNumbers(const Results& results) const {
    const auto is_finite = [](const Bytes& bytes) {
      std::vector<float> values(bytes.size() / sizeof(float));
      if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
      return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
    };
    if (!is_finite(results.y)) return Wrong("Forward gives y that is not finite");
    if (!is_finite(results.dx)) return Wrong("BackwardInput gives dx that is not finite");
    for (size_t i = 0; i < results.gradients.size(); ++i) {
      if (is_finite(results.gradients[i])) continue;
      return Wrong(absl::StrCat("BackwardWeight gives a gradient of ",
                                trial_.spec().parameters[i].name, " that is not finite"));
    }
    return absl::OkStatus();
  }

  // Returns the name of the first result that differs between two runs; "" if none does.
  std::string Difference(const Results& a, const Results& b) const {
    if (a.y != b.y) return "y";
    if (a.dx != b.dx) return "dx";
    for (size_t i = 0; i < a.gradients.size(); ++i) {
      if (a.gradients[i] != b.gradients[i]) {
        return absl::StrCat("the gradient of ", trial_.spec().parameters[i].name);
      }
    }
    return "";
  }

  absl::Status CheckRepeats(const Results& results) {
    ASSIGN_OR_RETURN(const Results again, trial_.Compute(0));
    if (const std::string what = Difference(results, again); !what.empty()) {
      return Wrong(absl::StrCat(what, " has other bits when it is computed again"));
    }
    RETURN_IF_ERROR(trial_.Forward(0));
    const Bytes y = trial_.micro_batch(0).y().Bytes();
    RETURN_IF_ERROR(trial_.Forward(1));
    RETURN_IF_ERROR(trial_.BackwardInput(0));
    RETURN_IF_ERROR(trial_.BackwardInput(1));
    if (!trial_.parameters().empty()) RETURN_IF_ERROR(trial_.BackwardWeight(0));
    const std::string what = Difference(results, trial_.ResultsOf(0, y));
    if (what.empty()) return absl::OkStatus();
    return Wrong(absl::StrCat(what,
                              " has other bits while another micro-batch is in flight: what a "
                              "layer keeps from one call to the next belongs in the areas "
                              "that it declares"));
  }

  absl::Status CheckReads(const Results& results) {
    // Results must not depend on what the areas hold before F, nor the workspace before each call.
    for (GuardedArea& area : trial_.micro_batch(0).areas) {
      const bool is_stash = area.name().ends_with("stash");
      if (is_stash || area.name() == "y" || area.name() == "dx") area.Fill(kNotANumber);
    }
    for (GuardedArea& area : trial_.gradients()) area.Fill(kNotANumber);
    trial_.FillWorkspaceWith(kNotANumber);
    ASSIGN_OR_RETURN(const Results fresh, trial_.Compute(0));
    if (const std::string what = Difference(results, fresh); !what.empty()) {
      return Wrong(absl::StrCat(what, " depends on what its own memory, or an area, held before"));
    }
    for (const Operand operand : kOperands) {
      const LastUse last_use = LastUseOf(trial_.spec().memory, operand);
      if (last_use == LastUse::kBackwardWeight) continue;
      const bool dies_early = last_use == LastUse::kForward;
      const std::optional<Operand> dead = operand, none;
      ASSIGN_OR_RETURN(const Results without,
                       trial_.Compute(0, dies_early ? dead : none, dies_early ? none : dead));
      if (without == results) continue;
      return ReadAfterLastUse(dies_early ? "BackwardInput" : "BackwardWeight", operand, last_use);
    }
    return absl::OkStatus();
  }

  // Returns sum(dy * y).
  absl::StatusOr<double> WeightedSum() {
    RETURN_IF_ERROR(trial_.Forward(0));
    LayerHarness::MicroBatch& own = trial_.micro_batch(0);
    double sum = 0.0;
    for (size_t i = 0; i < own.y().floats().size(); ++i) {
      sum += static_cast<double>(own.dy().floats()[i]) * static_cast<double>(own.y().floats()[i]);
    }
    return sum;
  }

  absl::StatusOr<double> CentralDifference(float& value, float step) {
    const float center = value;
    double difference = 0.0;
    for (const auto& [steps, weight] : {std::pair{1, 8.0}, {-1, -8.0}, {2, -1.0}, {-2, 1.0}}) {
      value = center + static_cast<float>(steps) * step;
      const absl::StatusOr<double> sum = WeightedSum();
      value = center;
      RETURN_IF_ERROR(sum.status());
      difference += weight * *sum;
    }
    return difference / (12.0 * static_cast<double>(step));
  }

  absl::Status CheckGradients(const Results& results) {
    if (check_.vocabulary == 0) {
      RETURN_IF_ERROR(CheckGradient("BackwardInput: dx", trial_.micro_batch(0).x(), results.dx));
    }
    for (size_t i = 0; i < trial_.parameters().size(); ++i) {
      if (trial_.spec().parameters[i].update.is_average()) continue;  // it has no gradient
      RETURN_IF_ERROR(CheckGradient(
          absl::StrCat("BackwardWeight: the gradient of ", trial_.spec().parameters[i].name),
          trial_.parameters()[i], results.gradients[i]));
    }
    return absl::OkStatus();
  }

  absl::Status CheckGradient(const std::string& name, GuardedArea& variable,
                             const Bytes& found_bytes) {
    std::vector<float> found(found_bytes.size() / sizeof(float));
    std::memcpy(found.data(), found_bytes.data(), found_bytes.size());
    float largest = 0.0F;
    for (const float value : found) largest = std::max(largest, std::abs(value));
    const auto count = static_cast<int64_t>(found.size());
    const int64_t stride = std::max<int64_t>(1, count / kMostDifferences);
    for (int64_t i = 0; i < count; i += stride) {
      const auto index = static_cast<size_t>(i);
      double nearest = std::numeric_limits<double>::infinity();
      for (const float step : {0x1p-6F, 0x1p-8F, 0x1p-10F}) {
        ASSIGN_OR_RETURN(const double expected, CentralDifference(variable.floats()[index], step));
        const double bound =
            check_.tolerance * std::max(static_cast<double>(largest), std::abs(expected)) + 1e-3;
        const double found_value = static_cast<double>(found[index]);
        if (std::abs(found_value - expected) < std::abs(found_value - nearest)) nearest = expected;
        if (std::abs(found_value - expected) <= bound) {
          nearest = found_value;
          break;
        }
      }
      if (nearest == static_cast<double>(found[index])) continue;
      return Wrong(absl::StrFormat("%s has %g in element %d, and Forward changes by %g", name,
                                   found[index], i, nearest));
    }
    return absl::OkStatus();
  }

  absl::Status CheckAccumulates(const Results& results) {
    if (trial_.parameters().empty()) return absl::OkStatus();
    std::vector<std::vector<float>> before;
    for (GuardedArea& gradient : trial_.gradients()) {
      trial_.Draw(-1.0F, 1.0F, gradient.floats());
      before.emplace_back(gradient.floats().begin(), gradient.floats().end());
    }
    RETURN_IF_ERROR(trial_.Forward(0));
    RETURN_IF_ERROR(trial_.BackwardInput(0));
    RETURN_IF_ERROR(trial_.BackwardWeight(0, /*accumulate=*/true));
    for (size_t p = 0; p < trial_.gradients().size(); ++p) {
      std::vector<float> added(before[p].size());
      std::memcpy(added.data(), results.gradients[p].data(), results.gradients[p].size());
      for (size_t i = 0; i < added.size(); ++i) {
        const float expected = before[p][i] + added[i];
        const float bound = 1e-4F * (1.0F + std::abs(added[i]));
        if (std::abs(trial_.gradients()[p].floats()[i] - expected) <= bound) continue;
        return Wrong(absl::StrFormat(
            "BackwardWeight with accumulate gives %g in element %d of the gradient of %s, and "
            "adding to what was there gives %g",
            trial_.gradients()[p].floats()[i], i, trial_.spec().parameters[p].name, expected));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckJoined(const Results& results) {
    RETURN_IF_ERROR(trial_.Forward(0));
    Bytes y = trial_.micro_batch(0).y().Bytes();
    RETURN_IF_ERROR(trial_.Backward(0));
    const std::string what = Difference(results, trial_.ResultsOf(0, std::move(y)));
    if (what.empty()) return absl::OkStatus();
    return Wrong(absl::StrCat("Backward gives other bits of ", what,
                              " than BackwardInput and BackwardWeight"));
  }

  LayerHarness& trial_;
  const LayerCheck& check_;
};

}  // namespace

absl::Status CheckLayer(const LayerFactory& factory, const LayerCheck& check) {
  ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Device> device, kernels::CreateCpuDevice({}));
  absl::Status status;
  device->stream().Run([&] {
    LayerHarness trial(factory, check, *device);
    status = Checker(trial, check).Run();
  });
  return status;
}

}  // namespace stagecoach::engine
