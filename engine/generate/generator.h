#ifndef STAGECOACH_ENGINE_GENERATE_GENERATOR_H_
#define STAGECOACH_ENGINE_GENERATE_GENERATOR_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/models/model.h"
#include "engine/train/trainer.h"

namespace stagecoach::engine {

// The same model, given the positions of sequences one after the other: its sample is one id, and
// layers keep what they need of earlier positions in caches (LayerContext::cached_positions), one
// for each of `sequences`, whose memory is part of the plan. Parameters are those of `model`, so
// its checkpoints fit. InvalidArgument: it does not take sequences of ids, or what it gives is not
// of one position each.
absl::StatusOr<Model> ModelForGeneration(Model model, int64_t sequences = 1);

// Continues sequences of ids through the stages of a model. The plan only predicts, and has one
// replica. Positions that are appended to a sequence, but for the last, pass as many at a time as a
// micro-batch has rows; the last ones of several sequences pass together, as rows of one
// micro-batch or, through several stages, of several, whichever takes less time. The same bits for
// any number of stages and, on a CPU device, whatever other sequences there are. Thread-compatible.
class Generator {
 public:
  // `trainer` runs a ModelForGeneration, is used by nothing else meanwhile, and outlives this.
  // Continue chooses among the first `choices` ids; 0: all. InvalidArgument: another model or plan.
  static absl::StatusOr<Generator> Create(Trainer& trainer, int64_t choices = 0);
  Generator(Generator&&) noexcept;
  Generator& operator=(Generator&&) noexcept;
  ~Generator();

  int64_t context() const;                   // the most positions
  int64_t sequences() const;                 // that there are caches for
  int64_t position(int sequence = 0) const;  // the number of ids appended so far
  void Restart(int sequence);                // it has none

  // What comes next of a sequence.
  struct Addition {
    int sequence = 0;
    absl::Span<const int32_t> ids;  // at least one
  };
  // Appends to some sequences, each at most once. Returns for each, in order, what the model gives
  // at the last of its ids, from which the one after it is to be chosen: a number for each id of
  // the vocabulary, valid until the next call. InvalidArgument: there is no such sequence, or an id
  // is not of the vocabulary. ResourceExhausted: the context has no room for them. Neither changes
  // anything. Errors of Trainer::Pass.
  absl::StatusOr<std::vector<absl::Span<const float>>> AppendEach(
      absl::Span<const Addition> additions);
  // Appends to the first sequence.
  absl::StatusOr<absl::Span<const float>> Append(absl::Span<const int32_t> ids);

  // Appends `ids` to the first sequence and then, one by one, the likeliest id to follow
  // (ChooseToken with a temperature of 0): gives each to `take`, which may be called from another
  // thread, until there are `most`, `take` says that no more are wanted, or the context is full; at
  // least one. The last one is not appended. On a GPU, each is chosen where the next one needs it.
  // Errors: those of AppendEach; InvalidArgument if a number that an id would be chosen by is not
  // finite.
  absl::Status Continue(absl::Span<const int32_t> ids, int64_t most,
                        absl::FunctionRef<bool(int32_t id)> take);

 private:
  class Sequences;

  Generator(Trainer& trainer, std::unique_ptr<Sequences> sequences, int64_t choices, bool chooses);
  // Appends ids, of which all but the last of each sequence pass.
  absl::Status AppendAndPass(absl::Span<const Addition> additions);
  // Passes the last one of each.
  absl::Status PassLast(absl::Span<const Addition> additions);
  // Returns the number of micro-batches that this number of sequences takes.
  int64_t MicroBatchesFor(int64_t sequences) const;
  // Passes the last one of the first, and maybe those that follow it (Trainer::Choose).
  absl::Status Choose(int64_t most, absl::FunctionRef<bool(int32_t id)> take);
  // Checks one addition by itself.
  absl::Status CheckAddition(const Addition& addition) const;

  Trainer* trainer_;
  std::unique_ptr<Sequences> sequences_;
  int64_t choices_;
  bool chooses_;  // the trainer chooses
  std::vector<float> outputs_;
};

}  // namespace stagecoach::engine

#endif  // STAGECOACH_ENGINE_GENERATE_GENERATOR_H_
