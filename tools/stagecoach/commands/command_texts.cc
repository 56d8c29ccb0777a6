#include "tools/stagecoach/commands/command_texts.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace stagecoach::tools {
namespace {

// Returns a command's word and the word of its subcommand, if it has one: "trace", "diff".
std::pair<std::string, std::string> WordsOf(const CommandText& command) {
  return absl::StrSplit(command.name, absl::MaxSplits(' ', 1));
}
bool HasTwoWords(const CommandText& command) { return absl::StrContains(command.name, ' '); }

// ---- man ----

// Escapes text; a line that begins with a dot or a quote would be an instruction.
std::string Roff(absl::string_view text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"\n", " "}});
  return escaped.starts_with('.') || escaped.starts_with('\'') ? absl::StrCat("\\&", escaped)
                                                               : escaped;
}

void AppendFlag(const FlagText& flag, std::string& page) {
  std::vector<std::string> names;
  for (const std::string& name : flag.names)
    names.push_back(absl::StrCat("\\fB", Roff(name), "\\fR"));
  absl::StrAppend(&page, ".TP\n", absl::StrJoin(names, ", "));
  if (!flag.placeholder.empty()) absl::StrAppend(&page, " \\fI", Roff(flag.placeholder), "\\fR");
  absl::StrAppend(&page, "\n", Roff(flag.description), "\n");
}

// ---- Shells ----

// Returns text in single quotes, which bash, zsh and fish read alike except for quotes inside,
// which are replaced.
std::string Quoted(absl::string_view text) {
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "’"}, {"\\", "/"}, {"\n", " "}}), "'");
}

// A word that can follow, and its meaning.
struct Completion {
  std::string name, description;
};

// Returns the commands of one word.
std::vector<Completion> CompletionsOf(absl::Span<const CommandText> commands) {
  std::vector<Completion> words;
  for (const CommandText& command : commands) {
    if (!HasTwoWords(command)) words.push_back({command.name, command.description});
  }
  return words;
}

// Returns the flags of a command, and the words of its subcommands.
std::vector<Completion> CompletionsOf(absl::Span<const CommandText> commands,
                                      const CommandText& command) {
  std::vector<Completion> words;
  for (const FlagText& flag : command.flags) {
    if (flag.is_argument()) continue;
    for (const std::string& name : flag.names) words.push_back({name, flag.description});
  }
  for (const CommandText& other : commands) {
    if (!HasTwoWords(other) || WordsOf(other).first != command.name) continue;
    words.push_back({WordsOf(other).second, other.description});
  }
  return words;
}

// Returns cases of the first two words of a command line, each with what `to_list` makes of the
// words that can follow: "trace diff" before "trace" and anything else.
std::string CasesOf(absl::Span<const CommandText> commands,
                    const std::function<std::string(const std::vector<Completion>&)>& to_list) {
  std::string of_two, of_one;
  for (const CommandText& command : commands) {
    const std::string names = to_list(CompletionsOf(commands, command));
    if (HasTwoWords(command)) {
      absl::StrAppend(&of_two, "    ", Quoted(command.name), ") names=", names, " ;;\n");
    } else {
      absl::StrAppend(&of_one, "    ", Quoted(command.name + " "), "*) names=", names, " ;;\n");
    }
  }
  return of_two + of_one;
}

}  // namespace

std::string ToManualPage(absl::Span<const CommandText> commands, const std::string& version,
                         const std::string& exit_status) {
  std::string page = absl::StrCat(
      ".TH STAGECOACH 1 \"\" \"stagecoach ", version,
      "\"\n.SH NAME\nstagecoach \\- trains networks that are too large for one device\n"
      ".SH SYNOPSIS\n");
  for (const CommandText& command : commands) {
    absl::StrAppend(&page, ".B stagecoach ", Roff(command.name), "\n");
    for (const FlagText& flag : command.flags) {
      if (flag.is_argument()) absl::StrAppend(&page, ".I ", Roff(flag.names[0]), "\n");
    }
    absl::StrAppend(&page, "[options]\n.br\n");
  }
  for (const CommandText& command : commands) {
    absl::StrAppend(&page, ".SH ", Roff(command.name), "\n", Roff(command.description), ".\n");
    std::string group;
    for (const FlagText& flag : command.flags) {
      if (flag.group != group) absl::StrAppend(&page, ".SS ", Roff(flag.group), "\n");
      group = flag.group;
      AppendFlag(flag, page);
    }
  }
  absl::StrAppend(&page, ".SH EXIT STATUS\n", Roff(exit_status), "\n");
  return page;
}

std::string ToBashCompletion(absl::Span<const CommandText> commands) {
  const auto to_list = [](const std::vector<Completion>& words) {
    return Quoted(absl::StrJoin(
        words, " ", [](std::string* out, const Completion& word) { out->append(word.name); }));
  };
  return absl::StrCat(
      "_stagecoach() {\n  local current=${COMP_WORDS[COMP_CWORD]} names=\n"
      "  case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n",
      CasesOf(commands, to_list),
      "  esac\n  ((COMP_CWORD > 1)) || names=", to_list(CompletionsOf(commands)),
      "\n  COMPREPLY=($(compgen -W \"$names\" -- \"$current\"))\n}\n"
      "complete -o bashdefault -o default -F _stagecoach stagecoach\n");
}

std::string ToZshCompletion(absl::Span<const CommandText> commands) {
  const auto to_list = [](const std::vector<Completion>& words) {
    std::string items;
    for (const Completion& word : words) {
      absl::StrAppend(&items, " ", Quoted(absl::StrCat(word.name, ":", word.description)));
    }
    return absl::StrCat("(", items, ")");
  };
  return absl::StrCat("#compdef stagecoach\nlocal -a names\nif ((CURRENT == 2)); then\n  names=",
                      to_list(CompletionsOf(commands)),
                      "\nelse\n  case \"$words[2] $words[3]\" in\n", CasesOf(commands, to_list),
                      "  esac\nfi\n_describe name names || _files\n");
}

std::string ToFishCompletion(absl::Span<const CommandText> commands) {
  std::string script = "complete -c stagecoach -n __fish_use_subcommand -f\n";
  for (const CommandText& command : commands) {
    const auto [word, own] = WordsOf(command);
    const std::string seen = absl::StrCat("__fish_seen_subcommand_from ", word);
    if (own.empty()) {
      absl::StrAppend(&script, "complete -c stagecoach -n __fish_use_subcommand -a ", word, " -d ",
                      Quoted(command.description), "\n");
    } else {
      absl::StrAppend(&script, "complete -c stagecoach -n ", Quoted(seen), " -a ", own, " -d ",
                      Quoted(command.description), "\n");
    }
    const std::string condition =
        own.empty() ? seen : absl::StrCat(seen, "; and __fish_seen_subcommand_from ", own);
    for (const FlagText& flag : command.flags) {
      if (flag.is_argument()) continue;
      for (const std::string& name : flag.names) {
        const bool is_long = name.starts_with("--");
        absl::StrAppend(&script, "complete -c stagecoach -n ", Quoted(condition),
                        is_long ? " -l " : " -s ", name.substr(is_long ? 2 : 1),
                        flag.placeholder.empty() ? "" : " -r", " -d ", Quoted(flag.description),
                        "\n");
      }
    }
  }
  return script;
}

}  // namespace stagecoach::tools
