#include "engine/train/generator.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/train/token_choice.h"
#include "kernels/ops/head_choice.h"

namespace stagecoach::engine {

// Its rows are its positions. It grows between runs alone.
class Generator::Sequence final : public Dataset {
 public:
  Sequence(int64_t context, int64_t vocabulary)
      : Dataset({.inputs = {{.name = "tokens",
                             .type = kernels::DType::kInt32,
                             .shape = Shape{1},
                             .vocabulary = vocabulary}}}),
        context_(context) {
    ids_.reserve(static_cast<size_t>(context));
  }

  int64_t rows() const override { return static_cast<int64_t>(ids_.size()); }
  int64_t context() const { return context_; }
  void Append(int32_t id) { ids_.push_back(id); }

 private:
  void ReadInput(int /*i*/, int64_t row, std::byte* out) const override {
    std::memcpy(out, &ids_[static_cast<size_t>(row)], sizeof(int32_t));
  }
  void ReadTarget(int64_t /*row*/, std::byte* /*out*/) const override {}  // there is none

  const int64_t context_;
  std::vector<int32_t> ids_;
};

absl::StatusOr<Model> ModelForGeneration(Model model) {
  if (!model.takes_ids() || model.input.rank() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("generation needs a model of sequences of ids; this one takes ",
                     model.takes_ids() ? "ids" : "numbers", " of shape ", model.input.ToString()));
  }
  model.cached_positions = std::exchange(model.input, Shape{1}).dim(0);
  return model;
}

absl::StatusOr<Generator> Generator::Create(Trainer& trainer, int64_t choices) {
  const PreparedRun& run = trainer.run();
  if (run.model.cached_positions == 0) {
    return absl::InvalidArgumentError("the model of the run is not one of ModelForGeneration");
  }
  // Each replica would have a part of the positions in its caches.
  if (run.plan.replicas() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("generation takes one replica, not ", run.plan.replicas()));
  }
  if (run.profile.output.elements() != run.model.vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat("generation needs a model that tells its ", run.model.vocabulary,
                     " ids apart; at a position, this one gives numbers of shape ",
                     run.profile.output.ToString()));
  }
  const int64_t vocabulary = run.model.vocabulary;
  if (choices < 0 || choices > vocabulary) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no choice among ", choices, " of ", vocabulary, " ids"));
  }
  if (choices == 0) choices = vocabulary;
  ASSIGN_OR_RETURN(const bool chooses, trainer.PrepareChoice(choices));
  return Generator(trainer, std::make_unique<Sequence>(run.model.cached_positions, vocabulary),
                   choices, chooses);
}

Generator::Generator(Trainer& trainer, std::unique_ptr<Sequence> sequence, int64_t choices,
                     bool chooses)
    : trainer_(&trainer), sequence_(std::move(sequence)), choices_(choices), chooses_(chooses) {}
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

int64_t Generator::context() const { return sequence_->context(); }
int64_t Generator::position() const { return sequence_->rows(); }

absl::StatusOr<absl::Span<const float>> Generator::Append(absl::Span<const int32_t> ids) {
  RETURN_IF_ERROR(AppendAndPass(ids));
  return Pass();
}

absl::Status Generator::AppendAndPass(absl::Span<const int32_t> ids) {
  const int64_t vocabulary = sequence_->spec().inputs[0].vocabulary;
  if (ids.empty()) return absl::InvalidArgumentError("there is no id to append");
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the id ", id, " is not below the vocabulary of ", vocabulary));
  }
  if (std::ssize(ids) > context() - position()) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the model has a context of ", context(), " tokens, ", position(),
                     " of which are taken: there is no room for ", ids.size(), " more"));
  }
  // What the model gives for those before the last is not wanted.
  const int64_t first = position();
  for (const int32_t id : ids.first(ids.size() - 1)) sequence_->Append(id);
  if (ids.size() > 1) RETURN_IF_ERROR(trainer_->PredictFrom(*sequence_, first, nullptr).status());
  sequence_->Append(ids.back());
  return absl::OkStatus();
}

absl::StatusOr<absl::Span<const float>> Generator::Pass() {
  RETURN_IF_ERROR(trainer_
                      ->PredictFrom(*sequence_, position() - 1,
                                    [&](const Outputs& outputs) {
                                      outputs_.assign(outputs.values.begin(), outputs.values.end());
                                      return absl::OkStatus();
                                    })
                      .status());
  return outputs_;
}

absl::Status Generator::Continue(absl::Span<const int32_t> ids, int64_t most,
                                 absl::FunctionRef<bool(int32_t id)> take) {
  RETURN_IF_ERROR(AppendAndPass(ids));
  for (int64_t given = 0;;) {
    std::optional<int32_t> last;
    bool goes_on = true;
    const int64_t room = context() - position() + 1;
    RETURN_IF_ERROR(Choose(std::min(most - given, room), [&](int32_t id) {
      if (last.has_value()) sequence_->Append(*last);  // it has passed
      last = id;
      ++given;
      goes_on = id != kernels::kNoClass && take(id);
      return goes_on;
    }));
    if (last == kernels::kNoClass) {
      return absl::InvalidArgumentError(
          absl::StrCat("at position ", position(),
                       " the model gives numbers that are not finite: its parameters are of no "
                       "use"));
    }
    if (!goes_on || given == most || position() == context()) return absl::OkStatus();
    sequence_->Append(*last);
  }
}

absl::Status Generator::Choose(int64_t most, absl::FunctionRef<bool(int32_t id)> take) {
  if (chooses_) return trainer_->Choose(*sequence_, most, take);
  ASSIGN_OR_RETURN(const absl::Span<const float> logits, Pass());
  ASSIGN_OR_RETURN(const int32_t id, ChooseToken(logits.first(static_cast<size_t>(choices_)),
                                                 {.temperature = 0.0}, position()));
  take(id);
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
