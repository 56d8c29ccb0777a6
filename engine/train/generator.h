#ifndef STAGECOACH_ENGINE_TRAIN_GENERATOR_H_
#define STAGECOACH_ENGINE_TRAIN_GENERATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// The same model, given the positions of one sequence one after the other: its sample is one id,
// and layers keep what they need of earlier positions in caches (LayerContext::cached_positions),
// whose memory is part of the plan. Parameters are those of `model`, so its checkpoints fit.
// InvalidArgument: it does not take sequences of ids, or what it gives is not of one position each.
absl::StatusOr<Model> ModelForGeneration(Model model);

// Continues a sequence of ids through the stages of a model. The plan only predicts, and has one
// replica; with one row in a batch, positions pass one by one, and with more, as many of those that
// are appended at once. The same bits for any number of stages. Thread-compatible.
class Generator {
 public:
  // `trainer` is of a ModelForGeneration, is used by nothing else meanwhile, and outlives this.
  // InvalidArgument: another model or plan.
  static absl::StatusOr<Generator> Create(Trainer& trainer);
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;
  ~Generator();

  int64_t context() const;   // the most positions
  int64_t position() const;  // so many ids have been appended

  // The ids that come next, at least one. Returns what the model gives at the last of them, from
  // which the one after it is to be chosen: a number for each id of the vocabulary, valid until the
  // next call. InvalidArgument: an id is not of the vocabulary. ResourceExhausted: the context has
  // no room for them. Neither changes anything. Errors of Trainer::Predict.
  absl::StatusOr<absl::Span<const float>> Append(absl::Span<const int32_t> ids);

 private:
  class Sequence;

  Generator(Trainer& trainer, std::unique_ptr<Sequence> sequence);

  Trainer* trainer_;
  std::unique_ptr<Sequence> sequence_;
  std::vector<float> outputs_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_GENERATOR_H_
