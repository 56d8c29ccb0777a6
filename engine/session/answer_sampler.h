#ifndef STAGECOACH_ENGINE_SESSION_ANSWER_SAMPLER_H_
#define STAGECOACH_ENGINE_SESSION_ANSWER_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/data/tokenizer/tokenizer.h"
#include "engine/generate/generator.h"
#include "engine/session/run_config.h"
#include "engine/session/training_observer.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// Lets a model of conversations answer the prompts of test samples while it is trained: a copy of
// its parameters, in a trainer of its own on one CPU device, always takes the likeliest token.
class AnswerSampler {
 public:
  // Prepares RunConfig::sampled_answers answers, to the first samples of the test set: to all that
  // precedes the first token that is learned. Among processes, that of rank 0 answers.
  // InvalidArgument: the test set is no .jsonl file, or all of its tokens are learned.
  // ResourceExhausted: the machine has no memory for the copy besides the run.
  static absl::StatusOr<std::unique_ptr<AnswerSampler>> Create(const RunConfig& options,
                                                               const TrainingRun& run);

  // Returns the answers with the present parameters of `trainer`, which has the model of the run.
  // Among processes, all call it; others than that of rank 0 get none. Frozen parameters are copied
  // the first time alone, until ForgetFrozen.
  absl::StatusOr<std::vector<SampledAnswer>> Answer(Trainer& trainer);
  void ForgetFrozen() { has_frozen_ = false; }

 private:
  // What is asked, and what the data say.
  struct Question {
    std::vector<int32_t> ids;
    std::string prompt, expected;
  };

  AnswerSampler() = default;
  absl::Status ReadQuestions(const Dataset& data, int64_t count);
  absl::Status Prepare(const RunConfig& options, const TrainingRun& run);
  // Copies the parameters to own_, if there is one.
  absl::Status Copy(Trainer& trainer);
  absl::StatusOr<SampledAnswer> AnswerTo(const Question& question);
  // Returns the text of ids up to what ends an answer.
  std::string TextOf(absl::Span<const int32_t> ids) const;
  bool IsEnd(int32_t id) const;

  std::shared_ptr<const Tokenizer> tokenizer_;
  std::vector<int32_t> ends_;  // tokens, any of which ends an answer
  std::string stop_;           // a text that does; "": none
  std::vector<Question> questions_;
  std::unique_ptr<Trainer> own_;  // null in other processes than that of rank 0
  std::optional<Generator> generator_;
  bool has_frozen_ = false;  // own_ has the frozen parameters
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_SESSION_ANSWER_SAMPLER_H_
