#ifndef STAGECOACH_ENGINE_TRAIN_GENERATOR_H_
#define STAGECOACH_ENGINE_TRAIN_GENERATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
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
  // Continue chooses among the first `choices` ids; 0: all. InvalidArgument: another model or plan.
  static absl::StatusOr<Generator> Create(Trainer& trainer, int64_t choices = 0);
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

  // Appends `ids` and then, one by one, the likeliest id to follow (ChooseToken with a temperature
  // of 0): gives each to `take`, which may be called from another thread, until there are `most`,
  // `take` says that no more are wanted, or the context is full; at least one. The last one is not
  // appended. On a GPU, each is chosen where the next one needs it. Errors: those of Append;
  // InvalidArgument if a number that an id would be chosen by is not finite.
  absl::Status Continue(absl::Span<const int32_t> ids, int64_t most,
                        absl::FunctionRef<bool(int32_t id)> take);

 private:
  class Sequence;

  Generator(Trainer& trainer, std::unique_ptr<Sequence> sequence, int64_t choices, bool chooses);
  // Appends ids, of which all but the last pass.
  absl::Status AppendAndPass(absl::Span<const int32_t> ids);
  // Passes the last one.
  absl::StatusOr<absl::Span<const float>> Pass();
  // Passes the last one, and maybe those that follow it (Trainer::Choose).
  absl::Status Choose(int64_t most, absl::FunctionRef<bool(int32_t id)> take);

  Trainer* trainer_;
  std::unique_ptr<Sequence> sequence_;
  int64_t choices_;
  bool chooses_;  // the trainer does
  std::vector<float> outputs_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_TRAIN_GENERATOR_H_
