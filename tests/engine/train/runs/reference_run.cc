#include "tests/engine/train/runs/reference_run.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/system/file.h"
#include "engine/checkpoint/files/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/train/runs/adamw_steps.h"
#include "tests/engine/train/runs/small_run.h"
#include "tests/testing/close_to.h"
#include "tests/testing/status_matchers.h"

namespace stagecoach::engine {
namespace {

using kernels::DType;
using ::stagecoach::testing::CloseTo;

constexpr int64_t kMaxReferenceBytes = int64_t{1} << 24;

template <typename T>
std::vector<double> ToDoubles(absl::string_view bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
  return {values.begin(), values.end()};
}

std::vector<double> ElementsOf(const SafetensorsEntry& entry, absl::string_view file) {
  const absl::string_view bytes =
      file.substr(static_cast<size_t>(entry.begin), static_cast<size_t>(entry.bytes()));
  switch (entry.type.value()) {
    case DType::kFloat32:
      return ToDoubles<float>(bytes);
    case DType::kFloat64:
      return ToDoubles<double>(bytes);
    default:
      STAGECOACH_CHECK(entry.type == DType::kInt32, "references have F32, F64 and I32");
      return ToDoubles<int32_t>(bytes);
  }
}

void ExpectClose(const std::string& what, const std::vector<double>& actual,
                 const std::vector<double>& expected, double tolerance) {
  double largest = 0.0;
  for (const double value : expected) largest = std::max(largest, std::fabs(value));
  EXPECT_THAT(actual, CloseTo(expected, tolerance * largest)) << what;
}

std::unique_ptr<Trainer> StartedAs(const ReferenceRun& reference, const Model& model,
                                   const partition::Plan& plan, const TrainerOptions& options) {
  auto trainer = MakeTrainer(model, plan, options);
  for (const auto& [name, entry] : reference.With("begin/")) {
    EXPECT_OK(
        trainer->SetParameter(name, std::vector<float>(entry.values.begin(), entry.values.end())));
  }
  return trainer;
}

std::vector<double> ValuesOf(Trainer& trainer, const std::string& name) {
  const std::vector<float> values = trainer.Parameter(name).value();
  return {values.begin(), values.end()};
}

// Takes a step of gradient descent at a large learning rate that is a power of two: what it
// subtracts is the gradient, to as many digits as there are.
void ExpectGradients(const ReferenceRun& reference, const Model& model, const partition::Plan& plan,
                     const Dataset& data, TrainerOptions options, double tolerance) {
  constexpr float kRate = 0x1p20F;
  options.optimizer = Optimizer::Sgd(/*momentum=*/0.0F);
  options.learning_rate = LearningRate::Constant(kRate);
  const auto trainer = StartedAs(reference, model, plan, options);
  ASSERT_OK(trainer->Step(data, Rows(0, data.rows())));
  const auto begin = reference.With("begin/");
  for (const auto& [name, gradient] : reference.With("gradient/")) {
    std::vector<double> actual = ValuesOf(*trainer, name);
    for (size_t i = 0; i < actual.size(); ++i) {
      actual[i] = (begin.at(name).values[i] - actual[i]) / double{kRate};
    }
    ExpectClose(absl::StrCat("gradient of ", name), actual, gradient.values, tolerance);
  }
}

}  // namespace

ReferenceRun::ReferenceRun(const std::string& name) {
  const std::string path =
      absl::StrCat(STAGECOACH_TEST_FIXTURES, "/", name, "/reference.safetensors");
  const std::string file = base::ReadFile(path, kMaxReferenceBytes).value();
  const SafetensorsHeader header =
      ParseSafetensors(file, static_cast<int64_t>(file.size())).value();
  for (const SafetensorsEntry& entry : header.tensors) {
    tensors_[entry.name] = {entry.shape, ElementsOf(entry, file)};
  }
}

const ReferenceRun::Entry& ReferenceRun::operator[](const std::string& name) const {
  const auto found = tensors_.find(name);
  STAGECOACH_CHECK(found != tensors_.end(), absl::StrCat("the reference has no ", name));
  return found->second;
}

std::map<std::string, ReferenceRun::Entry> ReferenceRun::With(absl::string_view prefix) const {
  std::map<std::string, Entry> found;
  for (const auto& [name, entry] : tensors_) {
    if (absl::StartsWith(name, prefix)) found[name.substr(prefix.size())] = entry;
  }
  return found;
}

void ExpectToMatch(const ReferenceRun& reference, const Model& model, const partition::Plan& plan,
                   const Dataset& data, const TrainerOptions& options,
                   const ReferenceTolerance& tolerance) {
  ASSERT_FALSE(reference.With("begin/").empty());
  const bool is_fp32 = options.device.precision == Precision::kFloat32;
  if (is_fp32) {
    ExpectGradients(reference, model, plan, data, options, tolerance.gradients);
  } else {
    TrainerOptions exact = options;
    exact.device.precision = Precision::kFloat32;
    ExpectStepsOfAdamW(*StartedAs(reference, model, plan, options),
                       *StartedAs(reference, model, plan, exact), model, data, options,
                       tolerance.gradients);
  }

  const auto trainer = StartedAs(reference, model, plan, options);
  std::vector<double> losses;
  for (size_t step = 0; step < reference["losses"].values.size(); ++step) {
    losses.push_back(trainer->Step(data, Rows(0, data.rows())).value().loss);
  }
  ExpectClose("losses", losses, reference["losses"].values, tolerance.values);
  const auto updated = reference.With("gradient/");
  for (const auto& [name, expected] : reference.With("end/")) {
    if (!is_fp32 && updated.contains(name)) continue;
    ExpectClose(name, ValuesOf(*trainer, name), expected.values, tolerance.values);
  }
  EXPECT_OK(trainer->WithAverages([&] {
    for (const auto& [name, expected] : reference.With("average/")) {
      ExpectClose("average of " + name, ValuesOf(*trainer, name), expected.values,
                  tolerance.values);
    }
    return absl::OkStatus();
  }));
  const std::vector<float> logits = trainer->Predict(data).value();
  ExpectClose("logits", {logits.begin(), logits.end()}, reference["logits"].values,
              tolerance.values);
}

}  // namespace stagecoach::engine
