#include "engine/generate/generator.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/generate/token_choice.h"
#include "engine/runtime/stage/layer_cost.h"
#include "kernels/head_choice.h"

namespace stagecoach::engine {

namespace {

// Reading the weights of a stage takes a CPU device about as long as this number of rows.
constexpr int64_t kRowsOfWeights = 16;

}  // namespace

// Has a row for each position of each sequence, one sequence after the other. It grows between runs
// alone.
class Generator::Sequences final : public Dataset {
 public:
  Sequences(int64_t sequences, int64_t context, int64_t vocabulary)
      : Dataset({.inputs = {{.name = "tokens",
                             .type = kernels::DType::kInt32,
                             .shape = Shape{1},
                             .vocabulary = vocabulary}}}),
        context_(context),
        ids_(static_cast<size_t>(sequences)) {}

  int64_t rows() const override { return count() * context_; }
  int64_t count() const { return std::ssize(ids_); }
  int64_t context() const { return context_; }
  int64_t positions(int sequence) const { return std::ssize(ids_[static_cast<size_t>(sequence)]); }
  int64_t RowOf(int sequence, int64_t position) const { return sequence * context_ + position; }
  int64_t LastRowOf(int sequence) const { return RowOf(sequence, positions(sequence) - 1); }
  void Append(int sequence, absl::Span<const int32_t> ids) {
    std::vector<int32_t>& all = ids_[static_cast<size_t>(sequence)];
    all.insert(all.end(), ids.begin(), ids.end());
  }
  void Clear(int sequence) { ids_[static_cast<size_t>(sequence)].clear(); }

 private:
  void ReadInput(int /*i*/, int64_t row, std::byte* out) const override {
    const std::vector<int32_t>& ids = ids_[static_cast<size_t>(row / context_)];
    std::memcpy(out, &ids[static_cast<size_t>(row % context_)], sizeof(int32_t));
  }
  void ReadTarget(int64_t /*row*/, std::byte* /*out*/) const override {}  // none

  const int64_t context_;
  std::vector<std::vector<int32_t>> ids_;  // by sequence
};

absl::StatusOr<Model> ModelForGeneration(Model model, int64_t sequences) {
  if (!model.takes_ids() || model.input.rank() != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("generation needs a model of sequences of ids; this one takes ",
                     model.takes_ids() ? "ids" : "numbers", " of shape ", model.input.ToString()));
  }
  model.cached_positions = std::exchange(model.input, Shape{1}).dim(0);
  model.cached_sequences = sequences;
  model.has_documents = false;
  return model;
}

absl::StatusOr<Generator> Generator::Create(Trainer& trainer, int64_t choices) {
  const PreparedRun& run = trainer.run();
  if (run.model.cached_positions == 0) {
    return absl::InvalidArgumentError("the model of the run is not one of ModelForGeneration");
  }
  // Each replica would have a part of the positions in its caches.
  if (run.plan().replicas() > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("generation takes one replica, not ", run.plan().replicas()));
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
  return Generator(trainer,
                   std::make_unique<Sequences>(run.model.cached_sequences,
                                               run.model.cached_positions, vocabulary),
                   choices, chooses);
}

Generator::Generator(Trainer& trainer, std::unique_ptr<Sequences> sequences, int64_t choices,
                     bool chooses)
    : trainer_(&trainer), sequences_(std::move(sequences)), choices_(choices), chooses_(chooses) {}
Generator::Generator(Generator&&) noexcept = default;
Generator& Generator::operator=(Generator&&) noexcept = default;
Generator::~Generator() = default;

int64_t Generator::context() const { return sequences_->context(); }
int64_t Generator::sequences() const { return sequences_->count(); }
int64_t Generator::position(int sequence) const { return sequences_->positions(sequence); }
void Generator::Restart(int sequence) { sequences_->Clear(sequence); }

absl::StatusOr<absl::Span<const float>> Generator::Append(absl::Span<const int32_t> ids) {
  ASSIGN_OR_RETURN(const auto logits, AppendEach({Addition{.sequence = 0, .ids = ids}}));
  return logits.front();
}

absl::StatusOr<std::vector<absl::Span<const float>>> Generator::AppendEach(
    absl::Span<const Addition> additions) {
  RETURN_IF_ERROR(AppendAndPass(additions));
  RETURN_IF_ERROR(PassLast(additions));
  const auto vocabulary = static_cast<size_t>(sequences_->spec().inputs[0].vocabulary);
  std::vector<absl::Span<const float>> logits;
  for (size_t i = 0; i < additions.size(); ++i) {
    logits.push_back(absl::MakeConstSpan(outputs_).subspan(i * vocabulary, vocabulary));
  }
  return logits;
}

absl::Status Generator::CheckAddition(const Addition& addition) const {
  const auto& [sequence, ids] = addition;
  const int64_t vocabulary = sequences_->spec().inputs[0].vocabulary;
  if (sequence < 0 || sequence >= sequences()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no sequence ", sequence, " of ", sequences()));
  }
  if (ids.empty()) return absl::InvalidArgumentError("there is no id to append");
  for (const int32_t id : ids) {
    if (id >= 0 && id < vocabulary) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("the id ", id, " is not below the vocabulary of ", vocabulary));
  }
  if (std::ssize(ids) <= context() - position(sequence)) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("the model has a context of ", context(), " tokens, ", position(sequence),
                   " of which are taken: there is no room for ", ids.size(), " more"));
}

absl::Status Generator::AppendAndPass(absl::Span<const Addition> additions) {
  std::vector<bool> seen(static_cast<size_t>(sequences()));
  for (const Addition& addition : additions) {
    RETURN_IF_ERROR(CheckAddition(addition));
    if (!seen[static_cast<size_t>(addition.sequence)]) {
      seen[static_cast<size_t>(addition.sequence)] = true;
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat("sequence ", addition.sequence, " is there twice"));
  }
  // Outputs for the positions before the last are not wanted.
  const partition::Plan& plan = trainer_->plan();
  std::vector<int64_t> rows, ends;
  const auto pass = [&]() -> absl::Status {
    if (ends.empty()) return absl::OkStatus();
    RETURN_IF_ERROR(trainer_->Pass(*sequences_, {.rows = rows, .ends = ends}).status());
    rows.clear();
    ends.clear();
    return absl::OkStatus();
  };
  for (const auto& [sequence, ids] : additions) {
    int64_t position = sequences_->positions(sequence);
    sequences_->Append(sequence, ids);
    while (position + 1 < sequences_->positions(sequence)) {
      const int64_t end =
          std::min(position + plan.micro_batch_rows, sequences_->positions(sequence) - 1);
      for (; position < end; ++position) rows.push_back(sequences_->RowOf(sequence, position));
      ends.push_back(std::ssize(rows));
      if (std::ssize(ends) == plan.schedule.num_micro_batches) RETURN_IF_ERROR(pass());
    }
  }
  return pass();
}

absl::Status Generator::PassLast(absl::Span<const Addition> additions) {
  const PreparedRun& run = trainer_->run();
  const int64_t most =
      run.plan().schedule.num_micro_batches * OutputRows(run.model, run.plan().micro_batch_rows);
  outputs_.clear();
  while (!additions.empty()) {
    const int64_t count = std::min(most, std::ssize(additions));
    const int64_t micro_batches = MicroBatchesFor(count);
    std::vector<int64_t> rows, ends;
    for (int64_t i = 0; i < count; ++i) {
      rows.push_back(sequences_->LastRowOf(additions[static_cast<size_t>(i)].sequence));
    }
    for (int64_t i = 1; i <= micro_batches; ++i) ends.push_back(count * i / micro_batches);
    ASSIGN_OR_RETURN(
        std::vector<float> outputs,
        trainer_->Pass(*sequences_,
                       {.rows = rows, .ends = ends, .are_sequences = true, .wants_outputs = true}));
    if (outputs_.empty()) {
      outputs_ = std::move(outputs);
    } else {
      outputs_.insert(outputs_.end(), outputs.begin(), outputs.end());
    }
    additions.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

int64_t Generator::MicroBatchesFor(int64_t sequences) const {
  const PreparedRun& run = trainer_->run();
  const int64_t most_rows = OutputRows(run.model, run.plan().micro_batch_rows);
  int64_t best = 0, least_time = 0;
  for (int64_t n = 1; n <= run.plan().schedule.num_micro_batches; ++n) {
    const int64_t rows = (sequences + n - 1) / n;
    const int64_t time = (n + run.plan().num_stages() - 1) * (rows + kRowsOfWeights);
    if (rows > most_rows || (best > 0 && time >= least_time)) continue;
    best = n;
    least_time = time;
  }
  return best;
}

absl::Status Generator::Continue(absl::Span<const int32_t> ids, int64_t most,
                                 absl::FunctionRef<bool(int32_t id)> take) {
  RETURN_IF_ERROR(AppendAndPass({Addition{.sequence = 0, .ids = ids}}));
  for (int64_t given = 0;;) {
    std::optional<int32_t> last;
    bool goes_on = true;
    const int64_t room = context() - position() + 1;
    RETURN_IF_ERROR(Choose(std::min(most - given, room), [&](int32_t id) {
      if (last.has_value()) sequences_->Append(0, {*last});  // it has passed
      last = id;
      ++given;
      goes_on = id != kernels::kNoClass && take(id);
      return goes_on;
    }));
    if (last == kernels::kNoClass) {
      return base::DataError(
          absl::StrCat("at position ", position(),
                       " the model gives numbers that are not finite: its parameters are of no "
                       "use"));
    }
    if (!goes_on || given == most || position() == context()) return absl::OkStatus();
    sequences_->Append(0, {*last});
  }
}

absl::Status Generator::Choose(int64_t most, absl::FunctionRef<bool(int32_t id)> take) {
  if (chooses_) return trainer_->Choose(*sequences_, sequences_->LastRowOf(0), most, take);
  RETURN_IF_ERROR(PassLast({Addition{.sequence = 0}}));
  const absl::Span<const float> logits =
      absl::MakeConstSpan(outputs_).first(static_cast<size_t>(choices_));
  ASSIGN_OR_RETURN(const int32_t id, ChooseToken(logits, {.temperature = 0.0}, position()));
  take(id);
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
