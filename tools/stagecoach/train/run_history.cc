#include "tools/stagecoach/train/run_history.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/system/system_calls.h"

namespace stagecoach::tools {
namespace {

constexpr size_t kMostPoints = 800;

double NumberIn(const nlohmann::ordered_json& event, const char* name) {
  const auto found = event.find(name);
  return found != event.end() && found->is_number() ? found->get<double>() : std::nan("");
}

}  // namespace

void RunHistory::Steps::Add(const Steps& other) {
  steps += other.steps;
  losses += other.losses;
  step += other.step;
  loss += other.loss;
  learning_rate += other.learning_rate;
  speed += other.speed;
}

void RunHistory::Add(const nlohmann::ordered_json& event) {
  const auto kind = event.find("event");
  const double step = NumberIn(event, "step");
  if (kind == event.end() || !std::isfinite(step)) return;
  last_step_ = std::max(last_step_, static_cast<int64_t>(step));
  if (*kind == "step") {
    const double tokens = NumberIn(event, "tokens_per_second");
    AddStep(static_cast<int64_t>(step), NumberIn(event, "loss"), NumberIn(event, "learning_rate"),
            std::isfinite(tokens) ? tokens : NumberIn(event, "samples_per_second"));
  } else if (*kind == "epoch" || *kind == "evaluation") {
    std::vector<std::pair<std::string, double>> values;
    for (const auto& [name, value] : event.items()) {
      if (value.is_number()) values.emplace_back(name, value.get<double>());
    }
    evaluations_.emplace_back(static_cast<int64_t>(step), std::move(values));
  }
}

void RunHistory::AddStep(int64_t step, double loss, double learning_rate, double speed) {
  last_step_ = std::max(last_step_, step);
  const bool has_loss = std::isfinite(loss);
  AddSteps({.steps = 1,
            .losses = has_loss ? 1 : 0,
            .step = static_cast<double>(step),
            .loss = has_loss ? loss : 0.0,
            .learning_rate = learning_rate,
            .speed = speed});
}

void RunHistory::AddSteps(const Steps& steps) {
  if (!steps_.empty() && steps_.back().steps < steps_each_) return steps_.back().Add(steps);
  if (steps_.size() == kMostPoints) {
    for (size_t i = 0; i < kMostPoints / 2; ++i) {
      steps_[i] = steps_[2 * i];
      steps_[i].Add(steps_[2 * i + 1]);
    }
    steps_.resize(kMostPoints / 2);
    steps_each_ *= 2;
  }
  steps_.push_back(steps);
}

absl::Status RunHistory::Read(const std::string& path) {
  std::ifstream file(path);
  if (!file) return base::ReadError("read", path);
  for (std::string line; std::getline(file, line);) {
    const auto event = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (event.is_object()) Add(event);
  }
  return absl::OkStatus();
}

RunHistory::Points RunHistory::MeanOf(double Steps::*sum) const {
  Points points;
  for (const Steps& some : steps_) {
    const auto count = static_cast<double>(sum == &Steps::loss ? some.losses : some.steps);
    const double step = some.step / static_cast<double>(some.steps);
    if (count > 0) points.emplace_back(step, some.*sum / count);
  }
  return points;
}

RunHistory::Points RunHistory::losses() const { return MeanOf(&Steps::loss); }
RunHistory::Points RunHistory::learning_rates() const { return MeanOf(&Steps::learning_rate); }
RunHistory::Points RunHistory::speeds() const { return MeanOf(&Steps::speed); }

RunHistory::Points RunHistory::Evaluated(const std::string& name) const {
  Points points;
  for (const auto& [step, values] : evaluations_) {
    for (const auto& [own, value] : values) {
      if (own == name) points.emplace_back(static_cast<double>(step), value);
    }
  }
  return points;
}

}  // namespace stagecoach::tools
