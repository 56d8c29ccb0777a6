#include "tools/stagecoach/generate/generation.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/units.h"
#include "engine/generate/generator.h"
#include "engine/session/machine/device_choice.h"
#include "engine/session/machine/machine.h"
#include "engine/session/training.h"
#include "engine/train/prepared_run.h"
#include "engine/train/trainer.h"
#include "tools/stagecoach/generate/prompt_positions.h"
#include "tools/stagecoach/generate/stop_text.h"
#include "tools/stagecoach/generate/token_text.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/stop_signal.h"

namespace stagecoach::tools {
namespace {

using nlohmann::ordered_json;

// Tokens that have passed through the model, and the time that they took.
struct Passed {
  int64_t tokens = 0;
  absl::Duration elapsed;
  void Add(const Passed& more) {
    tokens += more.tokens;
    elapsed += more.elapsed;
  }
  double per_second() const {
    return static_cast<double>(tokens) / std::max(absl::ToDoubleSeconds(elapsed), 1e-9);
  }
};

struct Generation {
  std::string text;
  int64_t tokens = 0;
  const char* ended_by = "tokens";  // or "end of text", "stop", "context", "signal"
  Passed prompt, own;
};

// Prints what is generated, text by text: what comes of one before those in front of it have ended
// is held back until then.
class GenerationOutput {
 public:
  GenerationOutput(bool json, size_t texts, int64_t context)
      : json_(json), context_(context), texts_(texts) {}

  int64_t context() const { return context_; }

  void Start(size_t text, const Prompt& prompt, int64_t tokens, const engine::Trainer& trainer) {
    if (json_) {
      Print(text, JsonLine({{"event", "prompt"},
                            {"text", prompt.text},
                            {"tokens", tokens},
                            {"context", context_},
                            {"first_layers", ordered_json(trainer.plan().first_layer)}}));
    } else {
      Print(text, absl::StrCat(text > 0 ? "\n" : "", prompt.shown));
    }
  }

  void Token(size_t text, int32_t id, absl::string_view more) {
    Print(text,
          json_ ? JsonLine({{"event", "token"}, {"id", id}, {"text", more}}) : std::string(more));
  }

  void End(size_t text, const Generation& done, absl::string_view last,
           const std::vector<engine::DeviceReport>& devices) {
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
      Print(text, JsonLine(event));
    } else {
      Print(text, absl::StrCat(last, "\n"));
    }
    tokens_ += done.tokens;
    ++ended_;
    texts_[text].fills_context = done.ended_by == absl::string_view("context");
    texts_[text].has_ended = true;
    while (first_ < texts_.size() && texts_[first_].has_ended) {
      if (texts_[first_].fills_context) {
        PrintNotice(absl::StrCat("the text ends here, since the model's context of ",
                                 base::FormatCount(context_), " tokens is full"));
      }
      if (++first_ == texts_.size()) break;
      Print(first_, std::exchange(texts_[first_].held_back, ""));
    }
  }

  // Prints a line about all texts.
  void Summarize(const Passed& prompts, const Passed& own) const {
    if (json_) return;
    PrintNotice(absl::StrFormat("%s tokens, %.1f tokens/s; prompt%s %s tokens, %.1f tokens/s",
                                base::FormatCount(tokens_), own.per_second(),
                                ended_ == 1 ? "" : "s", base::FormatCount(prompts.tokens),
                                prompts.per_second()));
  }

 private:
  struct Text {
    std::string held_back;
    bool has_ended = false;
    bool fills_context = false;
  };

  void Print(size_t text, absl::string_view more) {
    if (text != first_) {
      absl::StrAppend(&texts_[text].held_back, more);
      return;
    }
    std::fwrite(more.data(), 1, more.size(), stdout);
    std::fflush(stdout);
  }

  const bool json_;
  const int64_t context_;
  std::vector<Text> texts_;
  size_t first_ = 0;  // of those that have not ended
  int64_t ended_ = 0, tokens_ = 0;
};

// How many ids of a model may follow. It may have more than its tokenizer; those stand for nothing,
// unless they end a text.
int64_t KnownIds(const engine::GenerationModel& model) {
  int64_t most = TokenText(model.tokenizer).vocabulary();
  for (const int32_t end : model.end_of_text) most = std::max<int64_t>(most, end + 1);
  return std::min(model.model.vocabulary, most);
}

// A text that continues its prompt.
class Continuation {
 public:
  Continuation(const GenerateOptions& options, const engine::GenerationModel& model, size_t number,
               absl::Span<const int32_t> prompt, GenerationOutput& output)
      : options_(options),
        model_(model),
        number_(number),
        output_(output),
        text_(model.tokenizer),
        stop_(options.stops),
        begin_(absl::Now()) {
    for (const int32_t id : prompt) text_.Append(id);
    done_.prompt.tokens = std::ssize(prompt);
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
    const std::string more = stop_.Append(text_.Append(id));
    absl::StrAppend(&done_.text, more);
    output_.Token(number_, id, more);
    ++done_.tokens;
    if (stop_.has_ended()) {
      done_.ended_by = "stop";
      return false;
    }
    if (done_.tokens == options_.tokens) return false;
    // The id itself has not passed.
    if (done_.prompt.tokens + done_.own.tokens == output_.context()) {
      done_.ended_by = "context";
      return false;
    }
    if (StopRequested()) {
      done_.ended_by = "signal";
      return false;
    }
    return true;
  }

  // Once the text has ended.
  absl::Status End(engine::Trainer& trainer) {
    const std::string last = stop_.Append(text_.Finish()) + stop_.Finish();
    absl::StrAppend(&done_.text, last);
    ASSIGN_OR_RETURN(const std::vector<engine::DeviceReport> devices, trainer.Devices());
    output_.End(number_, done_, last, devices);
    return absl::OkStatus();
  }
  const Generation& done() const { return done_; }
  bool was_stopped() const { return done_.ended_by == absl::string_view("signal"); }

 private:
  const GenerateOptions& options_;
  const engine::GenerationModel& model_;
  const size_t number_;
  GenerationOutput& output_;
  TokenText text_;
  StopText stop_;
  Generation done_;
  bool is_first_ = true;  // the next one is what follows the prompt
  absl::Time begin_;      // of the prompt, then of what follows
};

using Prompts = std::vector<std::vector<int32_t>>;  // their ids

// Prompts that are continued together, unless the caller says how many: so many rows take a stage
// not much longer than a few.
constexpr int64_t kTogetherOnStage = 16;
// The positions of several prompts that pass at a time, whatever their number and lengths are: so a
// text has the same bits among other prompts.
constexpr int64_t kPositionsOfSeveral = 128;

// The model, with caches for so many sequences.
absl::StatusOr<engine::PreparedRun> PlanTogether(const engine::RunConfig& run, engine::Model model,
                                                 const engine::DeviceSpec& device, int stages,
                                                 const Prompts& prompts, int64_t together) {
  model.cached_sequences = together;
  const engine::PlanOptions plan = {
      .devices = stages,
      .predicts = true,
      .micro_batches = together > 1 ? stages : 1,
      .micro_batch_rows =
          together > 1 ? kPositionsOfSeveral : PositionsAtATime(device.kind, prompts),
      .device = device,
      .exchange = ExchangeOf(run.device, device)};
  ASSIGN_OR_RETURN(engine::ModelProfile profile,
                   OnDevices(device, AnalyzeModel(model, ProfileOptionsOf(plan))));
  ASSIGN_OR_RETURN(engine::PreparedRun prepared, PrepareRun(model, std::move(profile), plan));
  const int64_t logits_bytes = 2 * together * model.vocabulary * int64_t{sizeof(float)};
  RETURN_IF_ERROR(CheckHasRoom(run, prepared, {.output_bytes = logits_bytes}));
  return prepared;
}

// As many together as are asked for or else, on CPU devices, as have room. On GPUs, one: attention
// with a cache has no CUDA kernel for several sequences.
absl::StatusOr<engine::PreparedRun> PlanGeneration(const engine::RunConfig& run, int64_t wanted,
                                                   const engine::Model& model,
                                                   const Prompts& prompts, int stages) {
  ASSIGN_OR_RETURN(const engine::DeviceSpec device, ChooseDevices(run, stages));
  int64_t together =
      std::min<int64_t>(wanted > 0 ? wanted : kTogetherOnStage * stages, std::ssize(prompts));
  if (device.kind != engine::DeviceKind::kCpu || !model.skips.empty()) together = 1;
  while (true) {
    absl::StatusOr<engine::PreparedRun> prepared =
        PlanTogether(run, model, device, stages, prompts, together);
    if (wanted > 0 || together == 1 || !absl::IsResourceExhausted(prepared.status())) {
      return prepared;
    }
    together /= 2;
  }
}

absl::StatusOr<std::unique_ptr<engine::Trainer>> MakeGenerationTrainer(
    const GenerateOptions& options, const engine::Model& model, const Prompts& prompts) {
  engine::RunConfig run = options.run;
  ASSIGN_OR_RETURN(run.cluster, ReadCluster(run));
  if (run.device.threads == 0) {
    ASSIGN_OR_RETURN(run.device, ShareProcessors(run, 1));
  }
  const auto plan = [&](int stages) {
    return PlanGeneration(run, options.together, model, prompts, stages);
  };
  ASSIGN_OR_RETURN(engine::PreparedRun prepared,
                   WithFallBack(run.device, run.notices, [&](const engine::DeviceChoice& device) {
                     run.device = device;
                     // Another GPU is only taken if it is asked for.
                     const bool takes_more = !run.stages.has_value() && device.kind == "cpu";
                     return takes_more ? engine::OverFewestDevices(model.num_layers(), plan)
                                       : plan(run.stages.value_or(1));
                   }));
  const engine::DeviceSpec device = prepared.device;
  return OnDevices(device,
                   engine::Trainer::Create(std::move(prepared),
                                           {.draws_parameters = false,
                                            .device = device,
                                            .exchange = ExchangeOf(run.device, device),
                                            .deadline = absl::Seconds(run.deadline_seconds)}));
}

// The ids of a prompt, which messages call `name`.
absl::StatusOr<std::vector<int32_t>> EncodePrompt(const engine::GenerationModel& model,
                                                  const Prompt& prompt, absl::string_view name) {
  std::vector<int32_t> ids = prompt.ids;
  if (ids.empty()) {
    ASSIGN_OR_RETURN(ids, TokenText(model.tokenizer).Encode(prompt.text));
    if (model.begin_of_text.has_value() && (ids.empty() || model.begins_prompts)) {
      ids.insert(ids.begin(), *model.begin_of_text);
    }
  }
  if (ids.empty()) {
    return base::DataError(absl::StrCat(name, " has no token to continue from"));
  }
  if (const int64_t context = model.model.cached_positions; std::ssize(ids) > context) {
    return base::DataError(
        absl::StrCat(name, " has ", ids.size(), " tokens, and the model's context has ", context));
  }
  return ids;
}

absl::StatusOr<Prompts> EncodePrompts(const engine::GenerationModel& model,
                                      absl::Span<const Prompt> prompts) {
  Prompts encoded;
  for (const Prompt& prompt : prompts) {
    const std::string name =
        prompts.size() == 1 ? "the prompt" : absl::StrCat("prompt ", encoded.size() + 1);
    ASSIGN_OR_RETURN(encoded.emplace_back(), EncodePrompt(model, prompt, name));
  }
  return encoded;
}

// All texts of a run.
class TextGeneration {
 public:
  TextGeneration(const GenerateOptions& options, const engine::GenerationModel& model,
                 absl::Span<const Prompt> prompts, const Prompts& encoded, engine::Trainer& trainer,
                 engine::Generator& generator)
      : options_(options),
        model_(model),
        prompts_(prompts),
        encoded_(encoded),
        trainer_(trainer),
        generator_(generator),
        output_(options.output.json, prompts.size(), generator.context()),
        sequences_(static_cast<size_t>(generator.sequences())) {}

  // Whether a signal has ended it.
  absl::StatusOr<bool> Run() {
    RETURN_IF_ERROR(generator_.sequences() == 1 ? ContinueEach() : ContinueTogether());
    output_.Summarize(read_, own_);
    return is_stopped_;
  }

 private:
  struct Sequence {
    std::optional<Continuation> text;  // none: it is free
    int32_t last = 0;                  // its next id
  };

  Continuation Start(size_t number) {
    output_.Start(number, prompts_[number], std::ssize(encoded_[number]), trainer_);
    return {options_, model_, number, encoded_[number], output_};
  }

  absl::Status End(Continuation& text) {
    is_stopped_ = is_stopped_ || text.was_stopped();
    return text.End(trainer_);
  }

  // Whether another prompt is to be started.
  bool StartsNext() {
    if (next_ == encoded_.size() || is_stopped_) return false;
    is_stopped_ = next_ > 0 && StopRequested();
    return !is_stopped_;
  }

  absl::Status ContinueEach() {
    while (StartsNext()) {
      const std::vector<int32_t>& prompt = encoded_[next_];
      Continuation text = Start(next_++);
      generator_.Restart(0);
      RETURN_IF_ERROR(options_.choice.temperature == 0.0 ? TakeLikeliest(prompt, text)
                                                         : Draw(prompt, text));
      RETURN_IF_ERROR(End(text));
      read_.Add(text.done().prompt);
      own_.Add(text.done().own);
    }
    return absl::OkStatus();
  }

  absl::Status TakeLikeliest(absl::Span<const int32_t> prompt, Continuation& text) {
    return generator_.Continue(prompt, options_.tokens, [&](int32_t id) { return text.Take(id); });
  }

  absl::Status Draw(absl::Span<const int32_t> prompt, Continuation& text) {
    ASSIGN_OR_RETURN(absl::Span<const float> logits, generator_.Append(prompt));
    while (true) {
      ASSIGN_OR_RETURN(const int32_t id, Choose(logits, 0));
      if (!text.Take(id)) return absl::OkStatus();
      ASSIGN_OR_RETURN(logits, generator_.Append({id}));
    }
  }

  // One more id of each text at a time; where one ends, the next prompt takes its place.
  absl::Status ContinueTogether() {
    while (true) {
      std::vector<engine::Generator::Addition> additions;
      for (int i = 0; i < std::ssize(sequences_); ++i) {
        Sequence& sequence = sequences_[static_cast<size_t>(i)];
        if (sequence.text.has_value() || !StartsNext()) continue;
        additions.push_back({.sequence = i, .ids = encoded_[next_]});
        sequence.text.emplace(Start(next_++));
        generator_.Restart(i);
      }
      const bool reads_prompts = !additions.empty();
      for (int i = 0; i < std::ssize(sequences_) && !reads_prompts; ++i) {
        const Sequence& sequence = sequences_[static_cast<size_t>(i)];
        if (!sequence.text.has_value()) continue;
        additions.push_back({.sequence = i, .ids = {&sequence.last, 1}});
      }
      if (additions.empty()) return absl::OkStatus();
      RETURN_IF_ERROR(Append(additions, reads_prompts ? read_ : own_));
    }
  }

  // Appends, takes what follows, and counts what has passed.
  absl::Status Append(absl::Span<const engine::Generator::Addition> additions, Passed& passed) {
    const absl::Time begin = absl::Now();
    ASSIGN_OR_RETURN(const std::vector<absl::Span<const float>> logits,
                     generator_.AppendEach(additions));
    for (size_t i = 0; i < additions.size(); ++i) {
      Sequence& sequence = sequences_[static_cast<size_t>(additions[i].sequence)];
      passed.tokens += std::ssize(additions[i].ids);
      ASSIGN_OR_RETURN(sequence.last, Choose(logits[i], additions[i].sequence));
      if (sequence.text->Take(sequence.last)) continue;
      RETURN_IF_ERROR(End(*sequence.text));
      sequence.text.reset();
    }
    passed.elapsed += absl::Now() - begin;
    return absl::OkStatus();
  }

  absl::StatusOr<int32_t> Choose(absl::Span<const float> logits, int sequence) const {
    const auto known = std::min(logits.size(), static_cast<size_t>(KnownIds(model_)));
    return ChooseToken(logits.first(known), options_.choice, generator_.position(sequence));
  }

  const GenerateOptions& options_;
  const engine::GenerationModel& model_;
  const absl::Span<const Prompt> prompts_;
  const Prompts& encoded_;
  engine::Trainer& trainer_;
  engine::Generator& generator_;
  GenerationOutput output_;
  std::vector<Sequence> sequences_;
  size_t next_ = 0;  // prompt
  bool is_stopped_ = false;
  Passed read_, own_;  // of all texts
};

}  // namespace

absl::StatusOr<int> GenerateTexts(const GenerateOptions& options,
                                  const engine::GenerationModel& model,
                                  absl::Span<const Prompt> prompts) {
  ASSIGN_OR_RETURN(const Prompts encoded, EncodePrompts(model, prompts));
  ASSIGN_OR_RETURN(const std::unique_ptr<engine::Trainer> trainer,
                   MakeGenerationTrainer(options, model.model, encoded));
  RETURN_IF_ERROR(model.load(*trainer));
  StopOnSignals();
  ASSIGN_OR_RETURN(engine::Generator generator,
                   engine::Generator::Create(*trainer, KnownIds(model)));
  TextGeneration generation(options, model, prompts, encoded, *trainer, generator);
  ASSIGN_OR_RETURN(const bool is_stopped, generation.Run());
  return is_stopped ? StatusOfStop() : kExitOk;
}

}  // namespace stagecoach::tools
