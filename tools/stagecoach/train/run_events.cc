#include "tools/stagecoach/train/run_events.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace stagecoach::tools {
namespace {

void AddSpeed(double samples_per_second, const Measures& measures, nlohmann::ordered_json& event) {
  if (measures.tokens > 0) {
    event["tokens_per_second"] = samples_per_second * static_cast<double>(measures.tokens);
  }
  event["samples_per_second"] = samples_per_second;
}

}  // namespace

nlohmann::ordered_json Timed(nlohmann::ordered_json event) {
  event["time"] = absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone());
  return event;
}

nlohmann::ordered_json StepEvent(const engine::FitProgress& progress, const Measures& measures) {
  nlohmann::ordered_json event = {
      {"event", "step"}, {"epoch", progress.epoch}, {"step", progress.run_step}};
  if (progress.step_result.skipped_for.empty()) {
    event["loss"] = progress.step_result.loss;
  } else {
    event["skipped"] = progress.step_result.skipped_for;
  }
  event["learning_rate"] = progress.step_result.learning_rate;
  AddSpeed(progress.samples_per_second, measures, event);
  return event;
}

nlohmann::ordered_json EvaluationEvent(const char* name, const engine::EpochResult& result,
                                       const Measures& measures) {
  nlohmann::ordered_json event = {
      {"event", name}, {"epoch", result.epoch}, {"step", result.step}, {"loss", result.loss}};
  if (measures.has_rmse()) {
    event["train_rmse"] = measures.Rmse(result.loss);
    event["test_rmse"] = measures.Rmse(result.test_loss);
  } else {
    event["train_accuracy"] = result.train_accuracy;
    event["test_accuracy"] = result.test_accuracy;
  }
  event["test_loss"] = result.test_loss;
  event["evaluation_seconds"] = absl::ToDoubleSeconds(result.evaluation);
  for (const auto& [metric, value] : result.more) event[metric] = value;
  if (measures.has_perplexity) event["test_perplexity"] = std::exp(result.test_loss);
  AddSpeed(result.samples_per_second, measures, event);
  return event;
}

nlohmann::ordered_json AnswerEvent(const engine::EpochResult& result, size_t index,
                                   const engine::SampledAnswer& answer) {
  return {{"event", "answer"},           {"epoch", result.epoch},
          {"step", result.step},         {"sample", index},
          {"prompt", answer.prompt},     {"answer", answer.text},
          {"expected", answer.expected}, {"complete", answer.is_complete}};
}

}  // namespace stagecoach::tools
