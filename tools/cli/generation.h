#ifndef STAGECOACH_TOOLS_CLI_GENERATION_H_
#define STAGECOACH_TOOLS_CLI_GENERATION_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "engine/train/token_choice.h"
#include "tools/cli/generation_model.h"
#include "tools/cli/run_options.h"

namespace stagecoach::tools {

// What `generate` asks for.
struct GenerateOptions {
  // One of these has the model.
  std::string checkpoint;
  std::string initial_parameters;
  std::string tokenizer;  // "": the model's own
  std::optional<std::string> prompt;
  std::string prompt_file;  // instead; "-": the standard input
  int64_t tokens = 200;     // at most
  engine::TokenChoice choice = {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .seed = 1};
  // Of these stages, the devices and what they have, deadline and json. No threads are all
  // processors, as one stage works at a time.
  RunOptions run;
};

// Prints the prompt and what follows, as it comes, until the text ends, there are as many tokens as
// asked for, or the context is full. Returns the exit status; errors are marked with their origin
// (tools/cli/exit_status.h).
absl::StatusOr<int> GenerateText(const GenerateOptions& options, const GenerationModel& model,
                                 absl::string_view prompt);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_CLI_GENERATION_H_
