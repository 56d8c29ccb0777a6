#include "tests/tools/cli_files/cli_file.h"

#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"

namespace stagecoach::tools {
namespace {

struct CliLine {
  int number = 0;
  std::string text;
};
using CliLines = std::vector<CliLine>;

// A line that is not indented, with the lines below it that are.
struct CliStatement {
  std::string key;
  std::string text;
  CliLines block;
  int number = 0;
};

struct CliKey {
  absl::string_view name;
  bool has_block = false;  // of indented lines
  bool expects = false;    // something of the last command
};

constexpr CliKey kCliKeys[] = {{.name = "run"},
                               {.name = "keep"},
                               {.name = "file", .has_block = true},
                               {.name = "append", .has_block = true},
                               {.name = "remove"},
                               {.name = "replace"},
                               {.name = "copy"},
                               {.name = "damage"},
                               {.name = "exit", .expects = true},
                               {.name = "out:", .expects = true},
                               {.name = "no out:", .expects = true},
                               {.name = "out is", .has_block = true, .expects = true},
                               {.name = "err:", .expects = true},
                               {.name = "no err:", .expects = true},
                               {.name = "json", .expects = true},
                               {.name = "exists", .expects = true},
                               {.name = "missing", .expects = true},
                               {.name = "same", .expects = true},
                               {.name = "differ", .expects = true},
                               {.name = "contents", .expects = true},
                               {.name = "no contents", .expects = true}};

// Returns the key that the line begins with, the longest of those that are known, or else nullptr.
const CliKey* FindCliKey(absl::string_view text) {
  const CliKey* found = nullptr;
  for (const CliKey& key : kCliKeys) {
    const absl::string_view name = key.name;
    if (absl::StartsWith(text, name) && (found == nullptr || name.size() > found->name.size()) &&
        (text.size() == name.size() || !absl::ascii_isalnum(text[name.size()]))) {
      found = &key;
    }
  }
  return found;
}

absl::Status CliError(int number, absl::string_view message) {
  return absl::InvalidArgumentError(absl::StrCat(number, ": ", message));
}

bool IsNameCharacter(char c) { return absl::ascii_islower(c) || c == '_'; }

// Returns the name at the start of `text`, or "".
std::string LeadingName(absl::string_view text) {
  size_t length = 0;
  while (length < text.size() && IsNameCharacter(text[length])) ++length;
  return std::string(text.substr(0, length));
}

// Returns an error for a name in `text` that is not known.
absl::Status CheckNames(int number, absl::string_view text, const CliNames& names,
                        const std::set<std::string>& kept) {
  for (size_t i = text.find('$'); i != text.npos; i = text.find('$', i + 1)) {
    const std::string name = LeadingName(text.substr(i + 1));
    if (!name.empty() && !names.contains(name) && !kept.contains(name)) {
      return CliError(number, absl::StrCat("nothing defines $", name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckIsNew(int number, const std::string& name, const CliNames& names) {
  if (!names.contains(name)) return absl::OkStatus();
  return CliError(number, absl::StrCat("there is another $", name));
}

// Splits "name = text" or "name in text".
absl::StatusOr<std::pair<std::string, std::string>> Definition(const CliStatement& statement,
                                                               absl::string_view separator) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(statement.text, absl::MaxSplits(separator, 1));
  const std::string name(absl::StripAsciiWhitespace(parts.first));
  const std::string text(absl::StripAsciiWhitespace(parts.second));
  if (name.empty() || LeadingName(name) != name || text.empty()) {
    return CliError(statement.number, absl::StrCat("expected: ", statement.key, " name ",
                                                   absl::StripAsciiWhitespace(separator), " ..."));
  }
  return std::pair(name, text);
}

absl::StatusOr<std::vector<CliStatement>> Statements(const CliLines& lines) {
  std::vector<CliStatement> statements;
  bool is_block = false;
  for (const CliLine& line : lines) {
    if (absl::StartsWith(line.text, "  ")) {
      if (!is_block) return CliError(line.number, "nothing is above this indented line");
      statements.back().block.push_back({line.number, line.text.substr(2)});
      continue;
    }
    is_block = !line.text.empty() && line.text[0] != '#';
    if (!is_block) continue;
    const CliKey* const known = FindCliKey(line.text);
    const std::string key(known != nullptr ? known->name
                                           : line.text.substr(0, line.text.find(' ')));
    const absl::string_view rest = absl::string_view(line.text).substr(key.size());
    statements.push_back({key, std::string(absl::StripAsciiWhitespace(rest)), {}, line.number});
  }
  return statements;
}

std::string JoinedLines(const CliLines& lines) {
  std::string text;
  for (const CliLine& line : lines) absl::StrAppend(&text, line.text, "\n");
  return text;
}

// Splits a text at its line ends, except those after a backslash.
CliLines LinesOf(absl::string_view text) {
  CliLines lines;
  int number = 0;
  bool continues = false;
  for (absl::string_view part : absl::StrSplit(text, '\n')) {
    ++number;
    if (continues) part = absl::StripLeadingAsciiWhitespace(part);
    if (!continues) lines.push_back({number, ""});
    continues = absl::ConsumeSuffix(&part, "\\");
    absl::StrAppend(&lines.back().text, part);
  }
  return lines;
}

class CliFileParser {
 public:
  explicit CliFileParser(CliNames names) : names_(std::move(names)) {}

  absl::Status Add(const CliStatement& statement) {
    if (statement.key == "let") {
      ASSIGN_OR_RETURN(auto definition, Definition(statement, "="));
      RETURN_IF_ERROR(CheckNames(statement.number, definition.second, names_, {}));
      RETURN_IF_ERROR(CheckIsNew(statement.number, definition.first, names_));
      names_[definition.first] = WithNames(definition.second, names_);
      return absl::OkStatus();
    }
    if (statement.key == "before") {
      RETURN_IF_ERROR(FinishCase());
      before_ = statement.block;
      return absl::OkStatus();
    }
    if (statement.key == "case") {
      RETURN_IF_ERROR(FinishCase());
      return StartCase(statement);
    }
    if (cases_.empty() || is_finished_) {
      return CliError(statement.number, "expected a case before this");
    }
    return AddStep(statement, names_);
  }

  absl::Status FinishCase() {
    if (is_finished_) return absl::OkStatus();
    is_finished_ = true;
    const CliCase& last = cases_.back();
    if (has_run_ && is_checked_) return absl::OkStatus();
    return CliError(last.line_number, absl::StrCat(last.name, " expects nothing at its end"));
  }

  std::vector<CliCase> Take() { return std::move(cases_); }

 private:
  absl::Status StartCase(const CliStatement& statement) {
    if (statement.text.empty() || !absl::c_all_of(statement.text, absl::ascii_isalnum)) {
      return CliError(statement.number, "the name of a case has letters and digits only");
    }
    if (!case_names_.insert(statement.text).second) {
      return CliError(statement.number, absl::StrCat("there is another case ", statement.text));
    }
    cases_.push_back({statement.text, statement.number, {}});
    kept_.clear();
    is_finished_ = has_run_ = false;
    RETURN_IF_ERROR(AddSteps(before_, names_));
    has_run_ = false;
    return absl::OkStatus();
  }

  absl::Status AddSteps(const CliLines& lines, const CliNames& names) {
    ASSIGN_OR_RETURN(const std::vector<CliStatement> statements, Statements(lines));
    for (const CliStatement& statement : statements) {
      RETURN_IF_ERROR(AddStep(statement, names));
    }
    return absl::OkStatus();
  }

  absl::Status AddLoop(const CliStatement& loop, CliNames names) {
    ASSIGN_OR_RETURN(const auto definition, Definition(loop, " in "));
    RETURN_IF_ERROR(CheckNames(loop.number, definition.second, names, {}));
    absl::StatusOr<std::vector<std::string>> values =
        SplitWords(WithNames(definition.second, names));
    if (!values.ok()) return CliError(loop.number, values.status().message());
    RETURN_IF_ERROR(CheckIsNew(loop.number, definition.first, names));
    for (const std::string& value : *values) {
      names[definition.first] = value;
      RETURN_IF_ERROR(AddSteps(loop.block, names));
    }
    return absl::OkStatus();
  }

  absl::Status AddStep(const CliStatement& statement, const CliNames& names) {
    if (statement.key == "for") return AddLoop(statement, names);
    const size_t arrow = statement.key == "run" ? statement.text.find(" => ") : std::string::npos;
    if (arrow != std::string::npos) {
      const std::string command = statement.text.substr(0, arrow);
      RETURN_IF_ERROR(AddStep({statement.key, command, {}, statement.number}, names));
      return AddSteps({{statement.number, statement.text.substr(arrow + 4)}}, names);
    }
    const CliKey* const key = FindCliKey(statement.key);
    if (key == nullptr) {
      return CliError(statement.number, absl::StrCat("unknown key \"", statement.key, "\""));
    }
    if (!key->has_block && !statement.block.empty()) {
      return CliError(statement.block[0].number,
                      absl::StrCat("\"", statement.key, "\" has no indented lines"));
    }
    if (key->expects && !has_run_) {
      return CliError(statement.number, "expected a command before this");
    }
    const std::string& text = statement.text;
    const std::string block = JoinedLines(statement.block);
    RETURN_IF_ERROR(CheckNames(statement.number, text, names, kept_));
    RETURN_IF_ERROR(CheckNames(statement.number, block, names, kept_));
    if (statement.key == "keep") {
      ASSIGN_OR_RETURN(const auto definition, Definition(statement, "="));
      RETURN_IF_ERROR(CheckIsNew(statement.number, definition.first, names));
      kept_.insert(definition.first);
    }
    has_run_ = has_run_ || statement.key == "run";
    is_checked_ = key->expects;
    cases_.back().steps.push_back(
        {statement.key, WithNames(text, names), WithNames(block, names), statement.number});
    return absl::OkStatus();
  }

  CliNames names_;
  CliLines before_;
  std::vector<CliCase> cases_;
  std::set<std::string> case_names_;
  std::set<std::string> kept_;  // by the last case
  bool has_run_ = false;        // the last case, so far
  bool is_checked_ = false;     // its last step expects something
  bool is_finished_ = true;
};

}  // namespace

std::string WithNames(absl::string_view text, const CliNames& names) {
  std::string replaced;
  for (size_t i = 0; i < text.size(); ++i) {
    const std::string name = text[i] == '$' ? LeadingName(text.substr(i + 1)) : "";
    const auto value = names.find(name);
    if (value == names.end()) {
      replaced.push_back(text[i]);
    } else {
      replaced += value->second;
      i += name.size();
    }
  }
  return replaced;
}

absl::StatusOr<std::vector<std::string>> SplitWords(absl::string_view text) {
  std::vector<std::string> words;
  std::string word, part, error;
  bool is_word = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == ' ') {
      if (is_word) words.push_back(std::exchange(word, ""));
      is_word = false;
      continue;
    }
    is_word = true;
    if (text[i] != '"') {
      word.push_back(text[i]);
      continue;
    }
    size_t end = i + 1;
    while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
    if (end >= text.size()) return absl::InvalidArgumentError("a quote has no end");
    if (!absl::CUnescape(text.substr(i + 1, end - i - 1), &part, &error)) {
      return absl::InvalidArgumentError(error);
    }
    word += part;
    i = end;
  }
  if (is_word) words.push_back(word);
  return words;
}

absl::StatusOr<std::vector<CliCase>> ParseCliFile(const std::string& text, const CliNames& names) {
  ASSIGN_OR_RETURN(const std::vector<CliStatement> statements, Statements(LinesOf(text)));
  CliFileParser parser(names);
  for (const CliStatement& statement : statements) RETURN_IF_ERROR(parser.Add(statement));
  RETURN_IF_ERROR(parser.FinishCase());
  return parser.Take();
}

}  // namespace stagecoach::tools
