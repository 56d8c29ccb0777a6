#ifndef STAGECOACH_ENGINE_SESSION_PREDICT_SCORES_H_
#define STAGECOACH_ENGINE_SESSION_PREDICT_SCORES_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/session/predict/prediction.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// Returns the sum of the natural logarithms of the probabilities that a model gives to the answers,
// for a loss that is the negative of their mean.
double LogLikelihoodOf(const Evaluation& evaluation);

// Evaluates each row of a task that wants scores, and writes a line for each sample to
// PredictionTask::scores, in the format that the end of its name says:
//   .jsonl  {"line":1,"log_likelihood":-3.5,"tokens":4,"correct":2,"perplexity":2.39}, or
//           {"line":2,"left_out":"no token to train on"}; a number that is not finite is null
//   .csv    the same columns, with a header; what does not apply is empty
// "line" is that of the file, from 1, if the task has lines; otherwise there is "row", from 0.
// "tokens" are those that are learned, and "correct" are those of them that are likelier than any
// other. Numbers are the shortest texts that read as the same float64. The file appears once all of
// it has been written, or not at all. Cancelled: the task was stopped.
absl::StatusOr<Prediction> ScoreAll(Trainer& trainer, const PredictionTask& task);

// InvalidArgument: the name ends otherwise.
absl::Status CheckScoresName(const std::string& path);

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_PREDICT_SCORES_H_
