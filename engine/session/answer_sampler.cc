#include "engine/session/answer_sampler.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/data/chat/chat_template.h"
#include "engine/models/model_file.h"
#include "engine/session/machine/machine.h"
#include "engine/session/training.h"
#include "kernels/loss_terms.h"

namespace stagecoach::engine {
namespace {

constexpr int64_t kMostTokens = 64;        // of an answer
constexpr int64_t kPositionsAtATime = 16;  // of a prompt

// Reads 32-bit numbers of a row, such as ids.
template <typename Copy>
std::vector<int32_t> Read(int64_t count, Copy copy) {
  std::vector<int32_t> values(static_cast<size_t>(count));
  copy(
      absl::MakeSpan(reinterpret_cast<std::byte*>(values.data()), values.size() * sizeof(int32_t)));
  return values;
}

// The model with a cache for one sequence, on one CPU device with all cores.
absl::StatusOr<PreparedRun> PlanAnswers(const TrainingRun& run) {
  ASSIGN_OR_RETURN(const Model model, ModelForGeneration(run.prepared.model));
  const bool is_on_cpu = run.prepared.device.kind == DeviceKind::kCpu;
  const DeviceSpec device = {
      .threads = std::max(1, InspectMachine().processors),
      .precision = is_on_cpu ? run.prepared.device.precision : Precision::kFloat32};
  const PlanOptions plan = {.devices = 1,
                            .predicts = true,
                            .micro_batches = 1,
                            .micro_batch_rows = kPositionsAtATime,
                            .device = device};
  ASSIGN_OR_RETURN(PreparedRun prepared, PrepareRun(model, plan));
  RETURN_IF_ERROR(
      base::Annotate(CheckHasMemoryFor(prepared, {.output_bytes = HostBytesOf(run.prepared)}),
                     "--sample-answers"));
  return prepared;
}

}  // namespace

absl::StatusOr<std::unique_ptr<AnswerSampler>> AnswerSampler::Create(const RunConfig& options,
                                                                     const TrainingRun& run) {
  if (!HoldsChats(TestDataOf(options))) {
    return base::UsageError(absl::StrCat("--sample-answers is for a .jsonl file, and ",
                                         TestDataOf(options), " is none"));
  }
  if (options.trains_on_all) {
    return base::UsageError(
        "--sample-answers needs answers that are learned apart: leave out --train-on all");
  }
  std::unique_ptr<AnswerSampler> sampler(new AnswerSampler);
  if (options.is_first_rank()) RETURN_IF_ERROR(sampler->Prepare(options, run));
  return sampler;
}

absl::Status AnswerSampler::Prepare(const RunConfig& options, const TrainingRun& run) {
  ASSIGN_OR_RETURN(tokenizer_, Tokenizer::Load(options.tokenizer));
  ASSIGN_OR_RETURN(const ModelTokens tokens, ParseModelTokens(run.model_text));
  for (const int64_t id : tokens.end_of_text) ends_.push_back(static_cast<int32_t>(id));
  if (tokenizer_->end_of_text().has_value()) ends_.push_back(*tokenizer_->end_of_text());
  // Prompts with completions need no template, and then end at the end of the text.
  const absl::StatusOr<ChatTemplate> chat =
      ChatTemplateFor(options.chat_template, options.tokenizer);
  if (chat.ok()) stop_ = chat->stop;
  RETURN_IF_ERROR(ReadQuestions(*run.data.test, options.sampled_answers));
  ASSIGN_OR_RETURN(PreparedRun prepared, PlanAnswers(run));
  const DeviceSpec device = prepared.device;
  ASSIGN_OR_RETURN(own_, Trainer::Create(std::move(prepared), {.draws_parameters = false,
                                                               .device = device,
                                                               .deadline = LongestWait(options)}));
  const int64_t known = std::min(tokenizer_->vocabulary(), run.prepared.model.vocabulary);
  ASSIGN_OR_RETURN(generator_, Generator::Create(*own_, known));
  return absl::OkStatus();
}

absl::Status AnswerSampler::ReadQuestions(const Dataset& data, int64_t count) {
  const int64_t context = data.features();
  for (int64_t row = 0; row < std::min(count, data.rows()); ++row) {
    const std::vector<int32_t> ids =
        Read(context, [&](absl::Span<std::byte> out) { data.CopyInput(0, row, out); });
    const std::vector<int32_t> labels =
        Read(context, [&](absl::Span<std::byte> out) { data.CopyTarget(row, out); });
    const auto is_learned = [](int32_t label) { return label != kernels::kNoLabel; };
    const auto begin = std::find_if(labels.begin(), labels.end(), is_learned);
    const auto end = std::find_if_not(begin, labels.end(), is_learned);
    Question& question = questions_.emplace_back();
    question.ids.assign(ids.begin(), ids.begin() + (begin - labels.begin()) + 1);
    TextDecoder decoder(*tokenizer_);
    for (const int32_t id : question.ids) question.prompt += decoder.Append(id);
    question.prompt += decoder.Finish();
    question.expected =
        TextOf({labels.data() + (begin - labels.begin()), static_cast<size_t>(end - begin)});
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SampledAnswer>> AnswerSampler::Answer(Trainer& trainer) {
  RETURN_IF_ERROR(trainer.WithAverages([&] { return Copy(trainer); }));
  std::vector<SampledAnswer> answers;
  for (const Question& question : questions_) {
    ASSIGN_OR_RETURN(answers.emplace_back(), AnswerTo(question));
  }
  return answers;
}

absl::Status AnswerSampler::Copy(Trainer& trainer) {
  absl::Status status;  // of the copies, which must not keep other processes waiting
  for (const ModelParameter& parameter : trainer.run().profile.parameters.all()) {
    if (parameter.is_copy() || (has_frozen_ && parameter.update.is_frozen())) continue;
    ASSIGN_OR_RETURN(const std::vector<float> values, trainer.Parameter(parameter.name));
    if (own_ != nullptr && status.ok()) status = own_->SetParameter(parameter.name, values);
  }
  RETURN_IF_ERROR(status);
  has_frozen_ = true;
  return absl::OkStatus();
}

bool AnswerSampler::IsEnd(int32_t id) const {
  return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

std::string AnswerSampler::TextOf(absl::Span<const int32_t> ids) const {
  TextDecoder decoder(*tokenizer_);
  std::string text;
  for (const int32_t id : ids) {
    if (IsEnd(id)) break;
    text += decoder.Append(id);
  }
  text += decoder.Finish();
  return stop_.empty() ? text : text.substr(0, text.find(stop_));
}

absl::StatusOr<SampledAnswer> AnswerSampler::AnswerTo(const Question& question) {
  SampledAnswer answer = {.prompt = question.prompt, .expected = question.expected};
  std::vector<int32_t> ids;
  std::string text;  // with the stop
  TextDecoder decoder(*tokenizer_);
  generator_->Restart(0);
  RETURN_IF_ERROR(generator_->Continue(question.ids, kMostTokens, [&](int32_t id) {
    ids.push_back(id);
    text += decoder.Append(id);
    answer.is_complete = IsEnd(id) || (!stop_.empty() && text.find(stop_) != std::string::npos);
    return !answer.is_complete;
  }));
  answer.text = TextOf(ids);
  return answer;
}

}  // namespace stagecoach::engine
