#include <CLI/CLI.hpp>
#include <algorithm>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/json.h"
#include "base/text/line.h"
#include "engine/data/chat/chat_dataset.h"
#include "engine/data/chat/chat_example.h"
#include "engine/data/chat/chat_template.h"
#include "engine/session/generation_model.h"
#include "engine/session/machine/device_choice.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/generate/generation.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

constexpr int64_t kMaxPromptBytes = int64_t{1} << 24;
constexpr int64_t kMostTogether = 4096;
constexpr int64_t kMostPositions = int64_t{1} << 24;

// A default, as the help shows it.
template <typename T>
std::string WithDefault(const char* text, const T& value) {
  return absl::StrCat(text, " [", value, "]");
}

// A line that is a prompt, or, of a file of JSON, an object that has it.
absl::StatusOr<std::string> ParsePrompt(absl::string_view line, bool is_json) {
  if (!is_json) return std::string(line);
  ASSIGN_OR_RETURN(const nlohmann::json document, base::ParseJson(line));
  ASSIGN_OR_RETURN(base::ObjectReader reader, base::ObjectReader::Create(document));
  return reader.RequiredString("prompt");
}

absl::StatusOr<std::vector<std::string>> ReadPrompts(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string contents, base::ReadInput(path, kMaxPromptBytes));
  std::vector<std::string> prompts;
  int64_t number = 0;
  for (absl::string_view line : absl::StrSplit(contents, '\n')) {
    ++number;
    line = absl::StripSuffix(line, "\r");
    if (line.empty()) continue;
    absl::StatusOr<std::string> prompt = ParsePrompt(line, absl::EndsWith(path, ".jsonl"));
    RETURN_IF_ERROR(
        base::InFile(base::Annotate(prompt.status(), absl::StrCat("line ", number)), path));
    prompts.push_back(*std::move(prompt));
  }
  if (!prompts.empty()) return prompts;
  return base::DataError(absl::StrCat(base::InputName(path), ": there is no prompt"));
}

absl::StatusOr<std::vector<std::string>> PromptsOf(const GenerateOptions& options) {
  if (options.prompt.has_value()) return std::vector<std::string>{*options.prompt};
  if (!options.prompts.empty()) return ReadPrompts(options.prompts);
  ASSIGN_OR_RETURN(std::string prompt, base::ReadInput(options.prompt_file, kMaxPromptBytes));
  return std::vector<std::string>{std::move(prompt)};
}

absl::Status CheckGenerateFlags(const GenerateOptions& options) {
  if (options.checkpoint.empty() == options.initial_parameters.empty()) {
    return base::UsageError("name the model, with either --checkpoint or --init");
  }
  if (!options.adapters.empty() && options.initial_parameters.empty()) {
    return base::UsageError("--lora is for --init: a checkpoint has its own adapters");
  }
  if (options.quantization.has_value() && options.initial_parameters.empty()) {
    return base::UsageError("--quantize is for --init: a checkpoint's weights are as they were");
  }
  if (options.context.has_value() && options.initial_parameters.empty()) {
    return base::UsageError("--context is for --init: a checkpoint has that of its run");
  }
  const int sources = static_cast<int>(options.prompt.has_value()) +
                      static_cast<int>(!options.prompt_file.empty()) +
                      static_cast<int>(!options.prompts.empty()) +
                      static_cast<int>(options.chat.has_value());
  if (sources != 1) {
    return base::UsageError(
        "give the text to continue, with one of --prompt, --prompt-file, --prompts and --chat");
  }
  if (!options.chat_template.empty() && !options.chat.has_value()) {
    return base::UsageError("--chat-template is for --chat");
  }
  return absl::OkStatus();
}

// Puts a message into the template of the model's conversations, and makes texts end where the
// assistant's turn does.
absl::StatusOr<Prompt> ChatPrompt(GenerateOptions& options, engine::GenerationModel& model) {
  if (model.tokenizer == nullptr) {
    return base::DataError("--chat: the model's tokens are bytes, which no chat template is for");
  }
  const std::string& named =
      options.chat_template.empty() ? model.chat_template : options.chat_template;
  ASSIGN_OR_RETURN(const engine::ChatTemplate chat_template,
                   engine::ChatTemplateFor(named, model.tokenizer_file));
  const engine::ChatMessage messages[] = {{.role = "user", .content = *options.chat}};
  Prompt prompt = {.text = *options.chat};
  ASSIGN_OR_RETURN(prompt.ids, engine::EncodeChatPrompt(*model.tokenizer, chat_template, messages));
  if (chat_template.stop.empty()) return prompt;  // it is the end of the text
  // If it is no token of its own, the text is searched for it.
  bool is_token = false;
  for (int32_t id = 0; id < model.tokenizer->vocabulary(); ++id) {
    if (model.tokenizer->BytesOf(id) != chat_template.stop) continue;
    model.end_of_text.push_back(id);
    is_token = true;
  }
  if (!is_token) options.stops.push_back(chat_template.stop);
  return prompt;
}

absl::StatusOr<int> Generate(GenerateOptions& options) {
  RETURN_IF_ERROR(CheckGenerateFlags(options));
  std::vector<Prompt> prompts;
  if (!options.chat.has_value()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> texts, PromptsOf(options));
    for (const std::string& text : texts) prompts.push_back({.text = text, .shown = text});
  }
  ASSIGN_OR_RETURN(
      engine::GenerationModel model,
      options.checkpoint.empty()
          ? engine::OpenHuggingFaceModel({.folder = options.initial_parameters,
                                          .adapters = options.adapters,
                                          .tokenizer = options.tokenizer,
                                          .quantization = options.quantization,
                                          .context = options.context},
                                         options.run.notices)
          : engine::OpenSavedModel(options.checkpoint, options.tokenizer, options.run.notices));
  if (options.chat.has_value()) {
    ASSIGN_OR_RETURN(prompts.emplace_back(), ChatPrompt(options, model));
  }
  return GenerateTexts(options, model, prompts);
}

void AddChoiceFlags(CLI::App& app, GenerateOptions& options) {
  const std::string group = "Choice";
  const auto count = [](int64_t min, int64_t max) {
    return [=](const std::string& text) { return ParseCount(text, min, max); };
  };
  const auto number = [](const NumberRange& range) {
    return [=](const std::string& text) { return ParseNumber(text, range); };
  };
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  engine::TokenChoice& choice = options.choice;
  AddFlag(app, "--tokens", "N", options.tokens,
          WithDefault("Maximum number of tokens to generate", options.tokens), count(1, kMost))
      ->group(group);
  const auto add_stops = [&options](const std::vector<std::string>& stops) {
    if (std::find(stops.begin(), stops.end(), "") != stops.end()) {
      throw CLI::ValidationError("--stop", "expected a text that is not empty");
    }
    options.stops = stops;
  };
  app.add_option_function<std::vector<std::string>>("--stop", add_stops,
                                                    "Stop before this text; may be repeated")
      ->option_text("TEXT")
      ->allow_extra_args(false)
      ->take_all()
      ->group(group);
  AddFlag(
      app, "--temperature", "X", choice.temperature,
      WithDefault("Sampling temperature; 0 always takes the likeliest token", choice.temperature),
      number({.min = 0.0, .max = 1e6}))
      ->group(group);
  AddFlag(app, "--top-k", "N", choice.top_k,
          WithDefault("Top-k sampling; 0 disables it", choice.top_k), count(0, kMost))
      ->group(group);
  AddFlag(app, "--top-p", "X", choice.top_p,
          WithDefault("Nucleus (top-p) sampling; 1 disables it", choice.top_p),
          number({.min = 0.0, .max = 1.0}))
      ->group(group);
  AddFlag(app, "--seed", "N", choice.seed, WithDefault("Random seed", choice.seed), count(0, kMost))
      ->group(group);
}

void AddGenerateFlags(CLI::App& app, GenerateOptions& options) {
  AddFlag(app, "--checkpoint", "DIR", options.checkpoint,
          "A checkpoint, or a run's folder for its newest", ParseFolder);
  AddFlag(app, "--init", "DIR", options.initial_parameters,
          "Instead: a Hugging Face folder of GPT-2, Llama, OPT, GPT-NeoX", ParseFolder);
  AddFlag(app, "--lora", "DIR", options.adapters, "Adapters of --init's model, as PEFT saves them",
          ParseFolder);
  AddFlag(app, "--quantize", "TYPE", options.quantization,
          absl::StrCat("Store the weights of --init's model in 4 or 8 bits: ",
                       absl::StrJoin(QuantizationNames(), ", ")),
          ParseQuantizationFlag);
  AddFlag(app, "--context", "N", options.context,
          "Most tokens of a text with --init's model [the model's]",
          [](const std::string& text) { return ParseCount(text, 1, kMostPositions); });
  AddFlag(app, "--tokenizer", "FILE", options.tokenizer,
          "The model's tokenizer, or bytes [the run's, or the folder's]", ParseFile);
  app.add_option("--prompt", options.prompt, "Text to continue")->option_text("TEXT");
  AddFlag(app, "--prompt-file", "FILE", options.prompt_file,
          "Instead: a file with the text, or - for standard input", ParseInput);
  AddFlag(app, "--prompts", "FILE", options.prompts,
          "Instead: a file with one prompt per line; in a .jsonl file, its \"prompt\"", ParseInput);
  app.add_option("--chat", options.chat, "Instead: a message for the assistant to answer")
      ->option_text("TEXT");
  AddFlag(app, "--chat-template", "NAME", options.chat_template,
          DescribeChatTemplate("Template of the chat", "the run's, or the tokenizer's"),
          ParseChatTemplate);
  AddFlag(app, "--batch-prompts", "N", options.together,
          "Number of prompts to decode together on CPU devices; 1: one at a time [16 per device]",
          [](const std::string& text) { return ParseCount(text, 1, kMostTogether); });
  AddChoiceFlags(app, options);
  engine::RunConfig& run = options.run;
  run.device.threads = 0;
  AddRunFlags(app, run,
              {{"--devices", "Devices to split the model over [the fewest with enough memory]"},
               {"--device"},
               {"--threads-per-device", "Cores per CPU device [all: one works at a time]"},
               {"--precision"},
               {"--gpus"},
               {"--exchange"},
               {"--tuning"},
               {"--device-memory"},
               {"--cluster"},
               {"--timeout"},
               {"--json"}},
              &options.output);
}

}  // namespace

Command AddGenerateCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("generate", "Continue a text, token by token");
  const auto options = std::make_shared<GenerateOptions>();
  AddGenerateFlags(*flags, *options);
  return {flags, [options] { return Generate(*options); }};
}

}  // namespace stagecoach::tools
