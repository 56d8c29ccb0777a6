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

// What the generator gives after those ids, and how long that took.
absl::StatusOr<absl::Span<const float>> Pass(engine::Generator& generator,
                                             absl::Span<const int32_t> ids, Passed& passed) {
  const absl::Time begin = absl::Now();
  ASSIGN_OR_RETURN(const absl::Span<const float> logits, generator.Append(ids));
  passed.tokens += std::ssize(ids);
  passed.elapsed += absl::Now() - begin;
  return logits;
}

// `logits`: what follows the prompt.
absl::Status Continue(const GenerateOptions& options, engine::Generator& generator, TokenText& text,
                      absl::Span<const float> logits, const GenerationOutput& output,
                      Generation& done) {
  // A model may have more ids than its tokenizer; those stand for nothing.
  const auto known = static_cast<size_t>(text.vocabulary());
  while (true) {
    ASSIGN_OR_RETURN(const int32_t id,
                     From(Origin::kData, ChooseToken(logits.first(std::min(logits.size(), known)),
                                                     options.choice, generator.position())));
    if (text.end_of_text() == id) {
      done.ended_by = "end of text";
      return absl::OkStatus();
    }
    const std::string more = text.Append(id);
    absl::StrAppend(&done.text, more);
    output.Token(id, more);
    if (++done.tokens == options.tokens) return absl::OkStatus();
    if (generator.position() == generator.context()) {
      done.ended_by = "context";
      return absl::OkStatus();
    }
    if (StopRequested()) {
      done.ended_by = "signal";
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(logits, Pass(generator, {id}, done.own));
  }
}

// Positions that pass at a time. A GPU takes about as long for a few as for one, and a token that
// follows then passes with as much padding: so for prompts that are worth it.
int64_t PositionsAtATime(const engine::DeviceSpec& device, int64_t prompt_tokens) {
  constexpr int64_t kFew = 8, kLongPrompt = 64;
  return device.kind == engine::DeviceKind::kCuda && prompt_tokens >= kLongPrompt ? kFew : 1;
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
  const int64_t logits_bytes =
      2 * plan.micro_batch_rows * model.vocabulary * int64_t{sizeof(float)};
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
                                    {.device = device,
                                     .exchange = ExchangeOf(run.device, device),
                                     .deadline = absl::Seconds(run.deadline_seconds)})));
}

}  // namespace

absl::StatusOr<int> GenerateText(const GenerateOptions& options, const GenerationModel& model,
                                 absl::string_view prompt) {
  TokenText text(model.tokenizer);
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids, From(Origin::kData, text.Encode(prompt)));
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
  ASSIGN_OR_RETURN(engine::Generator generator,
                   From(Origin::kConfiguration, engine::Generator::Create(*trainer)));
  StopOnSignals();
  const GenerationOutput output(options.run.json);
  output.Start(prompt, std::ssize(ids), generator, *trainer);
  for (const int32_t id : ids) text.Append(id);
  Generation done;
  ASSIGN_OR_RETURN(const absl::Span<const float> logits, Pass(generator, ids, done.prompt));
  RETURN_IF_ERROR(Continue(options, generator, text, logits, output, done));
  const std::string last = text.Finish();
  absl::StrAppend(&done.text, last);
  ASSIGN_OR_RETURN(const std::vector<engine::DeviceReport> devices, trainer->Devices());
  output.End(done, last, context, devices);
  return done.ended_by == absl::string_view("signal") ? StatusOfStop() : kExitOk;
}

}  // namespace stagecoach::tools
