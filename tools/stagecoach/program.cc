#include "tools/stagecoach/program.h"

#include <execinfo.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "base/catch_exceptions.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/system/file.h"
#include "base/text/nearest.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/flags/run_flags.h"
#include "tools/stagecoach/terminal/exit_status.h"
#include "tools/stagecoach/terminal/messages.h"
#include "tools/stagecoach/terminal/stop_signal.h"
#include "tools/stagecoach/terminal/terminal.h"

namespace stagecoach::tools {
namespace {

constexpr char kNoThread[] =
    "the system refused a thread or another of its means; see the limits of processes and memory "
    "(ulimit -u, ulimit -v, pids.max)";

std::terminate_handler usual_end = nullptr;

// Allocates nothing.
void EndWithoutMeans() {
  const char* line = nullptr;
  try {
    if (std::current_exception() != nullptr) throw;
  } catch (const std::bad_alloc&) {
    line = base::kNoMemory;
  } catch (const std::system_error&) {
    line = kNoThread;
  } catch (...) {
  }
  if (line == nullptr) usual_end();
  for (const char* const part : {"stagecoach: ", line, "\n"}) std::fputs(part, stderr);
  _exit(kExitBadConfiguration);
}

class HelpFormatter final : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name,
                        CLI::AppFormatMode mode) const override {
    return absl::StrReplaceAll(CLI::Formatter::make_help(app, std::move(name), mode),
                               {{"\n\n\n", "\n\n"}});
  }

  // A flag takes no value; what it needs, a command line without that is told.
  std::string make_option_opts(const CLI::Option* option) const override {
    return option->get_items_expected_min() == 0 ? "" : CLI::Formatter::make_option_opts(option);
  }

  // A description that is too long for a line, such as a list of names, continues in the next.
  std::string make_option_desc(const CLI::Option* option) const override {
    constexpr size_t kMostColumns = 100;
    const size_t room = kMostColumns - get_column_width();
    std::string text = option->get_description();
    for (size_t begin = 0; text.size() - begin > room;) {
      const size_t space = text.rfind(' ', begin + room);
      if (space == std::string::npos || space < begin) break;
      text[space] = '\n';
      begin = space + 1;
    }
    return text;
  }
};

absl::Status UsageError(const CLI::App& app, absl::string_view message) {
  const std::string program = app.get_parent() == nullptr
                                  ? app.get_name()
                                  : absl::StrCat(app.get_parent()->get_name(), " ", app.get_name());
  return base::UsageError(absl::StrCat(message, " (see ", program, " --help)"));
}

// Returns how to say what other programs say by this flag, which has no flag of its own here; "":
// nothing is known of it.
absl::string_view HintFor(const CLI::App& app, absl::string_view flag) {
  constexpr absl::string_view kAccumulates =
      "gradients are accumulated over the micro-batches of a batch: --micro-batches N";
  constexpr absl::string_view kGpus = "N GPUs are --device cuda --devices N";
  constexpr std::pair<absl::string_view, absl::string_view> kHints[] = {
      {"--accum", kAccumulates},
      {"--grad-accum", kAccumulates},
      {"--gradient-accum", kAccumulates},
      {"--micro-batch-size",
       "a micro-batch has --global-batch-size / --micro-batches samples: give these"},
      {"--num-gpus", kGpus},
      {"--ngpus", kGpus}};
  if (app.get_option_no_throw("--micro-batches") == nullptr) return "";
  for (const auto& [start, hint] : kHints) {
    if (absl::StartsWith(absl::StrReplaceAll(flag, {{"_", "-"}}), start)) return hint;
  }
  return "";
}

// An error for the first argument that `app` does not know.
absl::Status CheckNothingLeft(const CLI::App& app) {
  const std::vector<std::string> left = app.remaining();
  if (left.empty()) return absl::OkStatus();
  const std::string word = left[0].substr(0, left[0].find('='));
  if (const absl::string_view hint = HintFor(app, word); !hint.empty()) {
    return UsageError(app, absl::StrCat("unknown argument \"", word, "\"; ", hint));
  }
  const CLI::Option* const data = app.get_option_no_throw("--data");
  if (data != nullptr && data->count() > 0 && base::Exists(word)) {
    // The shell has replaced a pattern.
    return UsageError(app, absl::StrCat("unknown argument \"", word,
                                        "\"; several files of --data have commas between them, or "
                                        "are a pattern in quotes: --data 'part-*.csv'"));
  }
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
  }
  for (const CLI::App* command : app.get_subcommands({})) known.push_back(command->get_name());
  const std::string nearest = base::Nearest(word, known);
  return UsageError(
      app, absl::StrCat("unknown argument \"", word, "\"",
                        nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?")));
}

// What the parser says, in words of ours: "--train-samples: 1 required TEXT missing" is a value
// that is empty, as in "--train-samples=", or not there.
std::string MessageOf(const CLI::ParseError& error) {
  const std::string message = error.what();
  const auto* const mismatch = dynamic_cast<const CLI::ArgumentMismatch*>(&error);
  if (mismatch == nullptr) return message;
  return absl::StrCat(message.substr(0, message.find(": ")), ": a value is missing");
}

// The same error where an argument that it quotes has several lines, as a name may.
absl::Status OnOneLine(const absl::Status& status, const std::vector<std::string>& arguments) {
  std::string message(status.message());
  for (const std::string& argument : arguments) {
    if (argument.find('\n') == std::string::npos) continue;
    const std::string value = argument.substr(argument.find('=') + 1);
    message = absl::StrReplaceAll(message, {{value, absl::StrReplaceAll(value, {{"\n", "\\n"}})}});
  }
  return base::WithMessage(status, message);
}

absl::Status CheckOutputs(const CLI::App& app) {
  std::vector<OutputFile> outputs;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_type_name() != kOutputFile || option->count() == 0) continue;
    outputs.push_back({option->get_name(), option->results().back()});
  }
  return CheckDistinct(outputs);
}

// Tells a person which value counts of a flag that is given with several. Scripts append to their
// defaults on purpose.
void NoteRepeated(const CLI::App& app) {
  if (TerminalColumns() == 0) return;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll) continue;
    const std::vector<std::string>& values = option->results();
    if (std::all_of(values.begin(), values.end(),
                    [&](const std::string& value) { return value == values.back(); })) {
      continue;
    }
    PrintNotice(absl::StrCat(option->get_name(), " is given ", values.size(),
                             " times: the last counts, ", values.back()));
  }
}

absl::Status FinishOutput() {
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return absl::OkStatus();
  // What was wrong may be long ago, and errno that of something else since: another try tells.
  return base::OutputError(write(STDOUT_FILENO, "\n", 1) == 1
                               ? "cannot write all of the output"
                               : absl::StrCat("cannot write the output: ", std::strerror(errno)));
}

// `rest`: what comes after "--", if that is there.
absl::StatusOr<int> RunCommand(const CLI::App& app, const std::vector<Command>& commands,
                               const std::optional<std::vector<std::string>>& rest) {
  for (const Command& command : commands) {
    if (!command.flags->parsed()) continue;
    RETURN_IF_ERROR(CheckNothingLeft(*command.flags));
    RETURN_IF_ERROR(CheckOutputs(*command.flags));
    if (rest.has_value() && command.rest == nullptr) {
      return UsageError(*command.flags, "unknown argument \"--\"");
    }
    if (rest.has_value()) *command.rest = *rest;
    NoteRepeated(*command.flags);
    ASSIGN_OR_RETURN(const int status, command.run());
    const absl::Status finished = FinishOutput();
    if (!HasHungUp()) RETURN_IF_ERROR(finished);
    return finished.ok() || status != kExitOk ? status : StatusOfStop();
  }
  RETURN_IF_ERROR(CheckNothingLeft(app));
  if (rest.has_value()) return UsageError(app, "unknown argument \"--\"");
  return UsageError(app,
                    "a command is needed: train, predict, generate, prepare, plan, profile, "
                    "simulate, bench, trace, checkpoint, "
                    "replay, launch, sweep, chaos, devices or help");
}

// The arguments, with present names for flags that have another one than in the last release.
std::vector<std::string> WithPresentNames(const CLI::App& app, std::vector<std::string> arguments) {
  const CLI::App* command = nullptr;
  for (std::string& argument : arguments) {
    if (command == nullptr) {
      for (const CLI::App* one : app.get_subcommands({})) {
        if (one->get_name() == argument) command = one;
      }
      continue;
    }
    const size_t end = std::min(argument.find('='), argument.size());
    const std::string name = argument.substr(0, end), present = PresentName(name);
    if (present != name && command->get_option_no_throw(name) == nullptr &&
        command->get_option_no_throw(present) != nullptr) {
      argument = present + argument.substr(end);
    }
  }
  return arguments;
}

}  // namespace

void EndInOneLineWithoutMeans() {
  usual_end = std::set_terminate(EndWithoutMeans);
  // The C library looks for what unwinds its own frames when that is first needed, which takes
  // memory, and aborts where there is none.
  void* frame = nullptr;
  backtrace(&frame, 1);
}

int RunProgram(int argc, char** argv) {
  EndInOneLineWithoutMeans();
  std::signal(SIGXFSZ,
              SIG_IGN);  // a file that may not grow any more (RLIMIT_FSIZE): as a full disk
  CLI::App app("Train networks that are too large for one device.", "stagecoach");
  app.set_version_flag("-V,--version", "stagecoach " STAGECOACH_VERSION);
  app.option_defaults()->take_last();  // So scripts can append to defaults.
  app.formatter(std::make_shared<HelpFormatter>());
  app.get_formatter()->column_width(26);
  app.footer(kExitStatusHelp);
  app.require_subcommand(0, 1);
  app.allow_extras();
  const std::vector<Command> commands = {
      AddTrainCommand(app),      AddPredictCommand(app), AddGenerateCommand(app),
      AddPrepareCommand(app),    AddPlanCommand(app),    AddProfileCommand(app),
      AddSimulateCommand(app),   AddBenchCommand(app),   AddTraceCommand(app),
      AddCheckpointCommand(app), AddReplayCommand(app),  AddLaunchCommand(app),
      AddSweepCommand(app),      AddChaosCommand(app),   AddDevicesCommand(app),
      AddHelpCommand(app)};
  for (const Command& command : commands) command.flags->allow_extras();
  app.footer(absl::StrCat("If a flag is repeated, the last value wins.\n\n", kExitStatusHelp));

  const auto parsed = [&]() -> const CLI::App& {
    const std::vector<CLI::App*> chosen = app.get_subcommands();
    return chosen.empty() ? app : *chosen[0];
  };
  const auto command_name = [&] { return &parsed() == &app ? "" : parsed().get_name(); };
  const std::vector<std::string> arguments(argv, argv + argc);
  const auto fail = [&](const absl::Status& error) {
    return Fail(command_name(), OnOneLine(error, arguments));
  };
  char** const end = argv + argc;
  char** const dashes = std::find_if(
      argv, end, [](const char* argument) { return std::strcmp(argument, "--") == 0; });
  std::optional<std::vector<std::string>> rest;
  if (dashes != end) rest.emplace(dashes + 1, end);
  try {
    std::vector<std::string> own = WithPresentNames(app, {argv + 1, dashes});
    std::reverse(own.begin(), own.end());  // as the parser takes them
    app.parse(std::move(own));
    const absl::StatusOr<int> status = RunCommand(app, commands, rest);
    return status.ok() ? *status : fail(status.status());
  } catch (const CLI::ParseError& error) {
    // --help and --version also come this way.
    if (error.get_exit_code() == 0) {
      app.exit(error);
      const absl::Status finished = FinishOutput();
      return finished.ok() ? kExitOk : fail(finished);
    }
    return fail(UsageError(parsed(), MessageOf(error)));
  } catch (const std::system_error& error) {
    return fail(absl::ResourceExhaustedError(absl::StrCat(error.what(), ": ", kNoThread)));
  } catch (const std::bad_alloc&) {
    return fail(absl::ResourceExhaustedError(base::kNoMemory));
  } catch (const std::exception& error) {
    return fail(absl::InternalError(error.what()));
  }
}

}  // namespace stagecoach::tools
