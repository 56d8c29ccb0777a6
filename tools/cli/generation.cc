#include "tools/cli/generation.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/units.h"
#include "engine/train/generator.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "tools/cli/device_choice.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/json_line.h"
#include "tools/cli/machine.h"
#include "tools/cli/messages.h"
#include "tools/cli/stop_signal.h"
#include "tools/cli/token_text.h"
#include "tools/cli/training.h"

namespace stagecoach::tools {
namespace {

using nlohmann::ordered_json;

// Tokens that have passed through the model, and the time that they took.
struct Passed {
  int64_t tokens = 0;
  absl::Duration elapsed;
  double per_second() const {
    return static_cast<double>(tokens) / std::max(absl::ToDoubleSeconds(elapsed), 1e-9);
  }
};

struct Generation {
  std::string text;
  int64_t tokens = 0;
  const char* ended_by = "tokens";  // or "end of text", "context", "signal"
  Passed prompt, own;
};

// Prints what is generated.
class GenerationOutput {
 public:
  explicit GenerationOutput(bool json) : json_(json) {}

  void Start(absl::string_view prompt, int64_t tokens, const engine::Generator& generator,
             const engine::Trainer& trainer) const {
    if (json_) {
      PrintJsonLine({{"event", "prompt"},
                     {"text", prompt},
                     {"tokens", tokens},
                     {"context", generator.context()},
                     {"first_layers", ordered_json(trainer.plan().first_layer)}});
    } else {
      absl::PrintF("%s", prompt);
    }
    std::fflush(stdout);
  }

  void Token(int32_t id, absl::string_view text) const {
    if (json_) {
      PrintJsonLine({{"event", "token"}, {"id", id}, {"text", text}});
    } else {
      absl::PrintF("%s", text);
    }
    std::fflush(stdout);
  }

  void End(const Generation& done, absl::string_view last, int64_t context,
           const std::vector<engine::DeviceReport>& devices) const {
    if (json_) {
      ordered_json event = {{"event", "end"},
                            {"text", done.text},
                            {"tokens", done.tokens},
                            {"ended_by", done.ended_by},
                            {"prompt_tokens_per_second", done.prompt.per_second()},
                            {"tokens_per_second", done.own.per_second()}};
      for (const engine::DeviceReport& device : devices) {
        event["devices"].push_back({{"device", device.device},
                                    {"measured_peak_bytes", device.measured_peak_bytes},
                                    {"predicted_peak_bytes", device.predicted_peak_bytes}});
      }
      PrintJsonLine(event);
    } else {
      absl::PrintF("%s\n", last);
    }
    std::fflush(stdout);
    if (done.ended_by == absl::string_view("context")) {
      PrintNotice(absl::StrCat("the text ends here, since the model's context of ",
                               base::FormatCount(context), " tokens is full"));
    }
    if (json_) return;
    PrintNotice(absl::StrFormat("%s tokens, %.1f tokens/s; prompt %s tokens, %.1f tokens/s",
                                base::FormatCount(done.tokens), done.own.per_second(),
                                base::FormatCount(done.prompt.tokens), done.prompt.per_second()));
  }

 private:
  const bool json_;
};

// How many ids of a model may follow. It may have more than its tokenizer; those stand for nothing,
// unless they end a text.
int64_t KnownIds(const GenerationModel& model, const TokenText& text) {
  int64_t most = text.vocabulary();
  for (const int32_t end : model.end_of_text) most = std::max<int64_t>(most, end + 1);
  return std::min(model.model.vocabulary, most);
}

// Continues the text of the prompt.
class Continuation {
 public:
  Continuation(const GenerateOptions& options, const GenerationModel& model,
               engine::Generator& generator, TokenText& text, const GenerationOutput& output)
      : options_(options), model_(model), generator_(generator), text_(text), output_(output) {}

  absl::StatusOr<Generation> Run(absl::Span<const int32_t> prompt) {
    done_.prompt.tokens = std::ssize(prompt);
    begin_ = absl::Now();
    RETURN_IF_ERROR(options_.choice.temperature == 0.0 ? TakeLikeliest(prompt) : Draw(prompt));
    return std::move(done_);
  }

 private:
  absl::Status TakeLikeliest(absl::Span<const int32_t> prompt) {
    const absl::Status status =
        generator_.Continue(prompt, options_.tokens, [this](int32_t id) { return Take(id); });
    // The prompt is sound: so it is of the parameters.
    return absl::IsInvalidArgument(status) ? From(Origin::kData, status) : status;
  }

  absl::Status Draw(absl::Span<const int32_t> prompt) {
    const auto known = static_cast<size_t>(KnownIds(model_, text_));
    ASSIGN_OR_RETURN(absl::Span<const float> logits, generator_.Append(prompt));
    while (true) {
      ASSIGN_OR_RETURN(const int32_t id,
                       From(Origin::kData, ChooseToken(logits.first(std::min(logits.size(), known)),
                                                       options_.choice, generator_.position())));
      if (!Take(id)) return absl::OkStatus();
      ASSIGN_OR_RETURN(logits, generator_.Append({id}));
    }
  }

  // Takes the id that follows; false: the text ends.
  bool Take(int32_t id) {
    Passed& passed = is_first_ ? done_.prompt : done_.own;
    passed.elapsed = absl::Now() - begin_;
    if (std::exchange(is_first_, false)) {
      begin_ = absl::Now();
    } else {
      ++done_.own.tokens;
    }
    const std::vector<int32_t>& ends = model_.end_of_text;
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) {
      done_.ended_by = "end of text";
      return false;
    }
    const std::string more = text_.Append(id);
    absl::StrAppend(&done_.text, more);
    output_.Token(id, more);
    if (++done_.tokens == options_.tokens) return false;
    // The id itself has not passed.
    if (done_.prompt.tokens + done_.own.tokens == generator_.context()) {
      done_.ended_by = "context";
      return false;
    }
    if (StopRequested()) {
      done_.ended_by = "signal";
      return false;
    }
    return true;
  }

  const GenerateOptions& options_;
  const GenerationModel& model_;
  engine::Generator& generator_;
  TokenText& text_;
  const GenerationOutput& output_;
  Generation done_;
  bool is_first_ = true;  // the next one is what follows the prompt
  absl::Time begin_;      // of the prompt, then of what follows
};

// Positions of a prompt that pass at a time. On a CPU device, where a token that follows passes
// alone all the same: equal parts of those before the last, so large that products are fast. A GPU
// takes about as long for a few as for one, and a token that follows then passes with as much
// padding: so for prompts that are worth it.
int64_t PositionsAtATime(const engine::DeviceSpec& device, int64_t prompt_tokens) {
  constexpr int64_t kFew = 8, kLongPrompt = 64, kMany = 128;
  if (device.kind == engine::DeviceKind::kCuda) return prompt_tokens >= kLongPrompt ? kFew : 1;
  const int64_t rest = std::max<int64_t>(prompt_tokens - 1, 1);
  const int64_t parts = (rest + kMany - 1) / kMany;
  return (rest + parts - 1) / parts;
}

absl::StatusOr<engine::PreparedRun> PlanGeneration(const RunOptions& run,
                                                   const engine::Model& model,
                                                   int64_t prompt_tokens) {
  const int stages = run.stages.value_or(1);
  ASSIGN_OR_RETURN(const engine::DeviceSpec device, ChooseDevices(run, stages));
  const engine::PlanOptions plan = {.devices = stages,
                                    .predicts = true,
                                    .micro_batch_rows = PositionsAtATime(device, prompt_tokens),
                                    .device = device,
                                    .exchange = ExchangeOf(run.device, device)};
  ASSIGN_OR_RETURN(engine::ModelProfile profile,
                   OnDevices(device, AnalyzeModel(model, {.micro_batch_rows = plan.micro_batch_rows,
                                                          .optimizer = plan.optimizer,
                                                          .device = device})));
  ASSIGN_OR_RETURN(engine::PreparedRun prepared, PrepareRun(model, std::move(profile), plan));
  RETURN_IF_ERROR(CheckGpusHaveRoom(run, prepared));
  const int64_t logits_bytes = 2 * model.vocabulary * int64_t{sizeof(float)};
  RETURN_IF_ERROR(CheckHasMemoryFor(prepared, {.output_bytes = logits_bytes}));
  return prepared;
}

absl::StatusOr<std::unique_ptr<engine::Trainer>> MakeGenerationTrainer(RunOptions run,
                                                                       const engine::Model& model,
                                                                       int64_t prompt_tokens) {
  if (run.device.threads == 0) run.device.threads = std::max(1, InspectMachine().processors);
  ASSIGN_OR_RETURN(engine::PreparedRun prepared,
                   WithFallBack(run.device, [&](const DeviceChoice& device) {
                     run.device = device;
                     return From(Origin::kConfiguration, PlanGeneration(run, model, prompt_tokens));
                   }));
  const engine::DeviceSpec device = prepared.device;
  return From(Origin::kConfiguration,
              OnDevices(device, engine::Trainer::Create(
                                    std::move(prepared),
                                    {.draws_parameters = false,
                                     .device = device,
                                     .exchange = ExchangeOf(run.device, device),
                                     .deadline = absl::Seconds(run.deadline_seconds)})));
}

}  // namespace

absl::StatusOr<int> GenerateText(const GenerateOptions& options, const GenerationModel& model,
                                 absl::string_view prompt) {
  TokenText text(model.tokenizer);
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, From(Origin::kData, text.Encode(prompt)));
  if (model.begin_of_text.has_value() && (ids.empty() || model.begins_prompts)) {
    ids.insert(ids.begin(), *model.begin_of_text);
  }
  const int64_t context = model.model.cached_positions;
  if (ids.empty()) {
    return From(Origin::kData, absl::InvalidArgumentError("the prompt has no token to go on from"));
  }
  if (std::ssize(ids) > context) {
    return From(Origin::kData, absl::InvalidArgumentError(absl::StrCat(
                                   "the prompt has ", ids.size(),
                                   " tokens, and the model's context is of ", context)));
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Trainer> trainer,
                   MakeGenerationTrainer(options.run, model.model, std::ssize(ids)));
  RETURN_IF_ERROR(From(Origin::kData, model.load(*trainer)));
  ASSIGN_OR_RETURN(
      engine::Generator generator,
      From(Origin::kConfiguration, engine::Generator::Create(*trainer, KnownIds(model, text))));
  StopOnSignals();
  const GenerationOutput output(options.run.json);
  output.Start(prompt, std::ssize(ids), generator, *trainer);
  for (const int32_t id : ids) text.Append(id);
  ASSIGN_OR_RETURN(Generation done, Continuation(options, model, generator, text, output).Run(ids));
  const std::string last = text.Finish();
  absl::StrAppend(&done.text, last);
  ASSIGN_OR_RETURN(const std::vector<engine::DeviceReport> devices, trainer->Devices());
  output.End(done, last, context, devices);
  return done.ended_by == absl::string_view("signal") ? StatusOfStop() : kExitOk;
}

}  // namespace stagecoach::tools
