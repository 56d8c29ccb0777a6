#ifndef STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_EVENTS_H_
#define STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_EVENTS_H_

#include <cstddef>
#include <nlohmann/json_fwd.hpp>

#include "engine/session/training_observer.h"
#include "engine/train/fit.h"
#include "tools/stagecoach/train/report.h"

// Events of a run as JSON: the lines of `train --json` and of its metrics file.
namespace stagecoach::tools {

// Returns the event with the present time, in UTC: "time":"2026-01-02T03:04:05.678Z".
nlohmann::ordered_json Timed(nlohmann::ordered_json event);

// Returns the event of a step, for its own batch alone: "loss" before the update, "learning_rate"
// and the speed over the epoch so far; "skipped", the reason, replaces the loss of a step that
// changed nothing.
nlohmann::ordered_json StepEvent(const engine::FitProgress& progress, const Measures& measures);

// Returns the event of an evaluation. `name` is "epoch", or "evaluation" within one. NaN and
// infinity become null.
nlohmann::ordered_json EvaluationEvent(const char* name, const engine::EpochResult& result,
                                       const Measures& measures);

// Returns the event of an answer that was sampled after an evaluation. `index`: among those of the
// evaluation, from 0.
nlohmann::ordered_json AnswerEvent(const engine::EpochResult& result, size_t index,
                                   const engine::SampledAnswer& answer);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_TRAIN_RUN_EVENTS_H_
