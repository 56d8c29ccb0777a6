#ifndef STAGECOACH_TOOLS_STAGECOACH_GENERATE_GENERATION_H_
#define STAGECOACH_TOOLS_STAGECOACH_GENERATE_GENERATION_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/generate/token_choice.h"
#include "engine/session/generation_model.h"
#include "engine/session/run_config.h"
#include "tools/stagecoach/flags/run_flags.h"

namespace stagecoach::tools {

// What `generate` asks for.
struct GenerateOptions {
  // One of these has the model.
  std::string checkpoint;
  std::string initial_parameters;
  std::string adapters;
  std::optional<kernels::Quantization> quantization;
  std::optional<int64_t> context;  // of --init's model
  std::string tokenizer;           // "": the model's own
  std::optional<std::string> prompt;
  std::string prompt_file;          // instead; "-": the standard input
  std::string prompts;              // instead: a file of several; "-": the standard input
  std::optional<std::string> chat;  // instead: a message, which the assistant answers
  std::string chat_template;        // of the chat; "": the model's own
  int64_t together = 0;             // prompts that are continued at a time; 0: as many as are fast
  int64_t tokens = 200;             // of each text, at most
  std::vector<std::string> stops;   // a text ends before the first of them
  engine::TokenChoice choice = {.temperature = 0.8, .top_k = 40, .top_p = 0.95, .seed = 1};
  // Of these stages, the devices and what they have, and deadline. No threads are all processors,
  // as one stage works at a time.
  engine::RunConfig run;
  OutputOptions output;
};

// A text to continue.
struct Prompt {
  std::string text;
  std::string shown;         // of it, in front of what follows
  std::vector<int32_t> ids;  // of the text; none: its tokenizer's
};

// Prints each prompt and what follows, as it comes, until the text ends, there are as many tokens
// as asked for, or the context is full; texts in the order of the prompts. Returns the exit status.
absl::StatusOr<int> GenerateTexts(const GenerateOptions& options,
                                  const engine::GenerationModel& model,
                                  absl::Span<const Prompt> prompts);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_GENERATE_GENERATION_H_
