#include "tools/cli/generate_command.h"

#include <CLI/CLI.hpp>
#include <limits>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/status_macros.h"
#include "tools/cli/add_flag.h"
#include "tools/cli/device_choice.h"
#include "tools/cli/exit_status.h"
#include "tools/cli/flags.h"
#include "tools/cli/generation.h"
#include "tools/cli/generation_model.h"

namespace stagecoach::tools {
namespace {

constexpr int64_t kMaxPromptBytes = int64_t{1} << 24;

// A default, as the help shows it.
template <typename T>
std::string WithDefault(const char* text, const T& value) {
  return absl::StrCat(text, " [", value, "]");
}

absl::StatusOr<std::string> PromptOf(const GenerateOptions& options) {
  if (options.prompt.has_value()) return *options.prompt;
  return base::ReadInput(options.prompt_file, kMaxPromptBytes);
}

absl::Status CheckGenerateFlags(const GenerateOptions& options) {
  if (options.checkpoint.empty() == options.initial_parameters.empty()) {
    return absl::InvalidArgumentError("name the model, with either --checkpoint or --init");
  }
  if (options.prompt.has_value() != options.prompt_file.empty()) {
    return absl::InvalidArgumentError(
        "give the text to go on from, with either --prompt or --prompt-file");
  }
  return absl::OkStatus();
}

absl::StatusOr<int> Generate(const GenerateOptions& options) {
  RETURN_IF_ERROR(From(Origin::kUsage, CheckGenerateFlags(options)));
  ASSIGN_OR_RETURN(const std::string prompt, From(Origin::kData, PromptOf(options)));
  ASSIGN_OR_RETURN(const GenerationModel model,
                   options.checkpoint.empty()
                       ? OpenHuggingFaceModel(options.initial_parameters, options.tokenizer)
                       : OpenSavedModel(options.checkpoint, options.tokenizer));
  return GenerateText(options, model, prompt);
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
          WithDefault("Stop after so many, if not before", options.tokens), count(1, kMost))
      ->group(group);
  AddFlag(
      app, "--temperature", "X", choice.temperature,
      WithDefault("0: always the likeliest token; more: more of the others", choice.temperature),
      number({.min = 0.0, .max = 1e6}))
      ->group(group);
  AddFlag(app, "--top-k", "N", choice.top_k,
          WithDefault("Choose among so many, the likeliest; 0: all", choice.top_k), count(0, kMost))
      ->group(group);
  AddFlag(app, "--top-p", "X", choice.top_p,
          WithDefault("And of them, the fewest with this probability together", choice.top_p),
          number({.min = 0.0, .max = 1.0}))
      ->group(group);
  AddFlag(app, "--seed", "N", choice.seed, WithDefault("Seed of what is drawn", choice.seed),
          count(0, kMost))
      ->group(group);
}

void AddGenerateFlags(CLI::App& app, GenerateOptions& options) {
  AddFlag(app, "--checkpoint", "DIR", options.checkpoint,
          "A checkpoint, or the folder of a run: its newest", ParseFolder);
  AddFlag(app, "--init", "DIR", options.initial_parameters,
          "Instead: a folder of Hugging Face's, of GPT-2 or Llama", ParseFolder);
  AddFlag(app, "--tokenizer", "FILE", options.tokenizer,
          "Its tokenizer, or bytes [where the run had it, or in the folder]", ParseFile);
  app.add_option("--prompt", options.prompt, "The text to go on from")->option_text("TEXT");
  AddFlag(app, "--prompt-file", "FILE", options.prompt_file,
          "Instead: a file that has it, or - for standard input", ParseInput);
  AddChoiceFlags(app, options);
  constexpr int kMost = 1024;
  const auto count = [](const std::string& text) { return ParseCount(text, 1, kMost); };
  RunOptions& run = options.run;
  AddFlag(app, "--devices,--stages", "N", run.stages, "Devices to cut the model over [1]", count)
      ->group("Pipeline");
  run.device.threads = 0;
  AddDeviceFlags(app, run.device);
  app.get_option("--threads-per-device")
      ->description("Cores of a CPU device [all: one works at a time]");
  AddFlag(app, "--device-memory", "SIZE", run.device_memory_bytes,
          "Budget of each device, such as 600MB or 1.5GiB [none]", ParseMemory)
      ->group("Pipeline");
  AddFlag(app, "--deadline", "SECONDS", run.deadline_seconds,
          WithDefault("Longest wait of one device for another", run.deadline_seconds),
          [](const std::string& text) {
            return ParseNumber(text, {.min = 0.0, .max = 1e6, .above_min = true});
          })
      ->group("Run");
  app.add_flag("--json", run.json, "Print JSON, one object per line")->group("Run");
}

}  // namespace

Command AddGenerateCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("generate", "Continue a text, token by token");
  const auto options = std::make_shared<GenerateOptions>();
  AddGenerateFlags(*flags, *options);
  return {flags, [options] { return Generate(*options); }};
}

}  // namespace stagecoach::tools
