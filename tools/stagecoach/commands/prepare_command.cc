#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/units.h"
#include "engine/data/tokens/prepare.h"
#include "engine/data/tokens/token_file.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/json_line.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/terminal/terminal.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {
namespace {

using engine::PreparedTokens;

struct PrepareCommandOptions {
  engine::PrepareOptions prepare;
  CLI::Option* test_fraction = nullptr;
  bool json = false;
};

// Redraws a line on the terminal, and stops at a signal.
class PrepareProgress {
 public:
  absl::Status Update(int64_t done_bytes, int64_t bytes) {
    if (StopRequested()) return absl::CancelledError("stopped by a signal");
    const absl::Time now = absl::Now();
    if (now - drawn_ < absl::Milliseconds(100)) return absl::OkStatus();
    drawn_ = now;
    const double rate = static_cast<double>(done_bytes) / absl::ToDoubleSeconds(now - started_);
    const auto left = absl::Seconds(static_cast<double>(bytes - done_bytes) / rate);
    RedrawLine(absl::StrFormat("%5.1f %%  %s of %s, %s/s, %s left",
                               100.0 * static_cast<double>(done_bytes) / static_cast<double>(bytes),
                               base::FormatBytes(done_bytes), base::FormatBytes(bytes),
                               base::FormatBytes(static_cast<int64_t>(rate)),
                               base::FormatDuration(left)));
    return absl::OkStatus();
  }

  absl::Duration elapsed() const { return absl::Now() - started_; }

 private:
  const absl::Time started_ = absl::Now();
  absl::Time drawn_ = started_;
};

absl::Status CheckOptions(const PrepareCommandOptions& options) {
  const engine::PrepareOptions& prepare = options.prepare;
  if (!engine::IsTokenFileName(prepare.output)) return absl::OkStatus();
  if (options.test_fraction->count() > 0) {
    return base::UsageError(
        "--val-fraction is for a directory; of one file, train tests on the last tenth");
  }
  return base::CheckWritable(prepare.output);
}

int64_t TokensOf(const PreparedTokens& prepared) {
  int64_t tokens = 0;
  for (const PreparedTokens::File& file : prepared.files) tokens += file.tokens;
  return tokens;
}

void PrintJson(const PreparedTokens& prepared, absl::Duration elapsed) {
  nlohmann::ordered_json files;
  for (const PreparedTokens::File& file : prepared.files) {
    files.push_back({{"path", file.path}, {"tokens", file.tokens}});
  }
  PrintJsonLine({{"event", "end"},
                 {"text_bytes", prepared.text_bytes},
                 {"tokens", TokensOf(prepared)},
                 {"vocabulary", prepared.vocabulary},
                 {"token_bytes", prepared.token_bytes},
                 {"files", files},
                 {"seconds", absl::ToDoubleSeconds(elapsed)}});
}

void PrintText(const PreparedTokens& prepared, absl::Duration elapsed) {
  const auto bytes = static_cast<double>(prepared.text_bytes);
  const int64_t tokens = TokensOf(prepared);
  absl::PrintF("%s tokens of a vocabulary of %s: %.2f bytes of text each, in %s (%s/s)\n",
               base::FormatCount(tokens), base::FormatCount(prepared.vocabulary),
               tokens == 0 ? 0.0 : bytes / static_cast<double>(tokens),
               base::FormatDuration(elapsed),
               base::FormatBytes(static_cast<int64_t>(bytes / absl::ToDoubleSeconds(elapsed))));
  for (const PreparedTokens::File& file : prepared.files) {
    absl::PrintF("wrote %s: %s tokens of %d bytes\n", file.path, base::FormatCount(file.tokens),
                 prepared.token_bytes);
  }
}

absl::StatusOr<int> RunPrepare(const PrepareCommandOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  StopOnSignals();
  PrepareProgress progress;
  engine::PrepareOptions prepare = options.prepare;
  prepare.on_progress = [&](int64_t done_bytes, int64_t bytes) {
    return progress.Update(done_bytes, bytes);
  };
  const absl::StatusOr<PreparedTokens> prepared = PrepareTokens(prepare);
  RedrawLine("");
  if (absl::IsCancelled(prepared.status())) {
    PrintNotice("stopped by a signal: what was not yet whole is not written");
    return StatusOfStop();
  }
  RETURN_IF_ERROR(prepared.status());
  if (options.json) {
    PrintJson(*prepared, progress.elapsed());
  } else {
    PrintText(*prepared, progress.elapsed());
  }
  return kExitOk;
}

}  // namespace

Command AddPrepareCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("prepare", "Tokenize a text into files to train on");
  flags->footer(
      "The text may be larger than memory. A tokenizer is a tokenizer.json, as GPT-2, Llama, Qwen\n"
      "and others have one, or a model of SentencePiece (docs/data-and-models.md).\n"
      "Then: stagecoach train --data DIR");
  const auto options = std::make_shared<PrepareCommandOptions>();
  engine::PrepareOptions& prepare = options->prepare;
  AddFlag(*flags, "--text", "FILE", prepare.text, "UTF-8 text", ParseFile)->required();
  AddFlag(*flags, "--tokenizer", "FILE", prepare.tokenizer, "A tokenizer.json or .model", ParseFile)
      ->required();
  AddFlag(*flags, "--output", "DIR|FILE", prepare.output,
          "A directory for train.bin and val.bin, or a .bin or .npy file", ParseFile)
      ->required();
  options->test_fraction =
      AddFlag(*flags, "--val-fraction", "X", prepare.test_fraction,
              absl::StrCat("Share of the text, at its end, for val.bin [",
                           engine::kDefaultTestFraction, "]"),
              [](const std::string& text) {
                return ParseNumber(text, {.min = 0.0, .max = 0.9, .above_min = true});
              });
  flags->add_flag("--json", options->json, "Print JSON");
  return {flags, [options] { return RunPrepare(*options); }};
}

}  // namespace stagecoach::tools
