#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/nearest.h"
#include "tools/stagecoach/commands/command_texts.h"
#include "tools/stagecoach/flags/add_flag.h"
#include "tools/stagecoach/flags/commands.h"
#include "tools/stagecoach/terminal/exit_status.h"

namespace stagecoach::tools {
namespace {

struct HelpOptions {
  std::vector<std::string> words;
  bool is_manual = false;
  std::string shell;
};

FlagText TextOf(const CLI::Option& option) {
  FlagText text;
  for (const std::string& name : option.get_snames()) text.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) text.names.push_back("--" + name);
  if (text.names.empty()) text.names.push_back(option.get_name());
  const bool takes_value = option.get_items_expected_max() > 0 && !option.get_positional();
  text.placeholder = takes_value ? option.get_option_text() : "";
  text.description = option.get_description();
  text.group = option.get_group() == "Options" ? "" : option.get_group();
  return text;
}

void AppendCommands(const CLI::App& app, const std::string& prefix,
                    std::vector<CommandText>& commands) {
  for (const CLI::App* command : app.get_subcommands({})) {
    CommandText& text = commands.emplace_back();
    text.name = prefix + command->get_name();
    text.description = command->get_description();
    for (const CLI::Option* option : command->get_options()) text.flags.push_back(TextOf(*option));
    AppendCommands(*command, absl::StrCat(command->get_name(), " "), commands);
  }
}

absl::StatusOr<const CLI::App*> Find(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* found = &app;
  for (const std::string& word : words) {
    const CLI::App* next = nullptr;
    std::vector<std::string> known;
    for (const CLI::App* command : found->get_subcommands({})) {
      known.push_back(command->get_name());
      if (known.back() == word) next = command;
    }
    if (next == nullptr) {
      const std::string nearest = base::Nearest(word, known);
      return base::UsageError(
          absl::StrCat("there is no command \"", absl::CHexEscape(word), "\"",
                       nearest.empty() ? "" : absl::StrCat("; did you mean ", nearest, "?"),
                       " (see stagecoach help)"));
    }
    found = next;
  }
  return found;
}

absl::StatusOr<int> Help(const CLI::App& app, const HelpOptions& options) {
  if (!options.words.empty() || (!options.is_manual && options.shell.empty())) {
    if (options.is_manual || !options.shell.empty()) {
      return base::UsageError("--man and --completion are of all commands, not of one");
    }
    ASSIGN_OR_RETURN(const CLI::App* const command, Find(app, options.words));
    std::vector<std::string> path = {app.get_name()};
    path.insert(path.end(), options.words.begin(), options.words.end());
    // CLI::App::help() would describe this command, which was parsed.
    absl::PrintF("%s", command->get_formatter()->make_help(command, absl::StrJoin(path, " "),
                                                           CLI::AppFormatMode::Normal));
    return kExitOk;
  }
  std::vector<CommandText> commands;
  AppendCommands(app, "", commands);
  if (options.shell == "bash") absl::PrintF("%s", ToBashCompletion(commands));
  if (options.shell == "zsh") absl::PrintF("%s", ToZshCompletion(commands));
  if (options.shell == "fish") absl::PrintF("%s", ToFishCompletion(commands));
  if (options.is_manual) {
    absl::PrintF("%s", ToManualPage(commands, STAGECOACH_VERSION, kExitStatusHelp));
  }
  return kExitOk;
}

}  // namespace

Command AddHelpCommand(CLI::App& app) {
  CLI::App* flags = app.add_subcommand("help", "Show the help of a command, or of all as a manual");
  const auto options = std::make_shared<HelpOptions>();
  flags->add_option("command", options->words, "Such as train, or trace diff [what there is]");
  CLI::Option* const manual =
      flags->add_flag("--man", options->is_manual, "Print a manual page of all commands");
  AddFlag(*flags, "--completion", "SHELL", options->shell,
          "Print what makes bash, zsh or fish complete commands and flags",
          Choice({"bash", "zsh", "fish"}))
      ->excludes(manual);
  return {flags, [&app, options] { return Help(app, *options); }};
}

}  // namespace stagecoach::tools
