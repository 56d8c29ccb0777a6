#include "tests/tools/cli_files/cli_run.h"

#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "gtest/gtest.h"
#include "tests/testing/test_folder.h"
#include "tests/tools/child.h"
#include "tests/tools/cli_files/cli_json.h"
#include "tests/tools/scoped_variable.h"

namespace stagecoach::tools {
namespace {

namespace fs = std::filesystem;

// Returns whether the line has all parts of a pattern in their order, and begins with one after
// "^".
bool HasPattern(absl::string_view line, absl::string_view pattern) {
  if (absl::ConsumePrefix(&pattern, "^")) {
    const absl::string_view start = pattern.substr(0, pattern.find("..."));
    if (!absl::StartsWith(line, absl::StripTrailingAsciiWhitespace(start))) return false;
  }
  for (const absl::string_view part : absl::StrSplit(pattern, "...")) {
    const absl::string_view text = absl::StripAsciiWhitespace(part);
    const size_t start = line.find(text);
    if (start == line.npos) return false;
    line.remove_prefix(start + text.size());
  }
  return true;
}

// Returns whether the lines are those of the patterns, of which "..." is any number of lines.
bool AreLines(absl::Span<const std::string> lines, absl::Span<const std::string> patterns) {
  if (patterns.empty()) return lines.empty();
  if (patterns[0] == "...") {
    for (size_t skipped = 0; skipped <= lines.size(); ++skipped) {
      if (AreLines(lines.subspan(skipped), patterns.subspan(1))) return true;
    }
    return false;
  }
  return !lines.empty() && HasPattern(lines[0], patterns[0]) &&
         AreLines(lines.subspan(1), patterns.subspan(1));
}

std::vector<std::string> LinesIn(absl::string_view text) {
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.back().empty()) lines.pop_back();
  return lines;
}

bool HasLine(absl::string_view text, absl::string_view pattern) {
  return absl::c_any_of(LinesIn(text),
                        [&](const std::string& line) { return HasPattern(line, pattern); });
}

std::string ContentsOfFile(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// What a line `run NAME=VALUE ... arguments < input > output` says.
struct CliCommand {
  std::vector<std::pair<std::string, std::string>> variables;
  Arguments arguments;
  std::map<std::string, std::string> files;  // by "<", ">", ">>" or "2>"
};

constexpr absl::string_view kRedirections[] = {"<", ">", ">>", "2>"};

CliCommand CommandOf(const std::vector<std::string>& words) {
  CliCommand command;
  for (size_t i = 0; i < words.size(); ++i) {
    if (absl::c_linear_search(kRedirections, words[i]) && i + 1 < words.size()) {
      command.files[words[i]] = words[i + 1];
      ++i;
    } else if (command.arguments.empty() && absl::ascii_isupper(words[i][0])) {
      command.variables.push_back(absl::StrSplit(words[i], absl::MaxSplits('=', 1)));
    } else {
      command.arguments.push_back(words[i]);
    }
  }
  return command;
}

class CliRun {
 public:
  CliRun(std::string file, const CliCase& test) : file_(std::move(file)), test_(test) {}

  void Perform() {
    for (size_t i = 0; i < test_.steps.size(); ++i) {
      CliStep step = test_.steps[i];
      step.text = WithNames(step.text, step.key == "json" ? kept_json_ : kept_);
      step.block = WithNames(step.block, kept_);
      PerformStep(step, i);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }

 private:
  // Reports what is wrong with a step, and the last command.
  void Fail(const CliStep& step, absl::string_view message) const {
    GTEST_MESSAGE_AT_(file_.c_str(), step.line_number,
                      absl::StrCat(step.key, " ", step.text, "\n", message, "\n", shown_).c_str(),
                      ::testing::TestPartResult::kFatalFailure);
  }
  void Check(bool holds, const CliStep& step, absl::string_view message) const {
    if (!holds) Fail(step, message);
  }

  fs::path PathOf(absl::string_view name) const { return folder_.path() / std::string(name); }

  void PerformStep(const CliStep& step, size_t index) {
    const std::string& key = step.key;
    const std::string& text = step.text;
    if (key == "run") {
      RunCommand(step, index);
    } else if (key == "file" || key == "append") {
      WriteLines(step);
    } else if (key == "remove") {
      Check(fs::remove_all(PathOf(text)) > 0, step, "there is no such file");
    } else if (key == "replace") {
      Replace(step);
    } else if (key == "copy") {
      Copy(step);
    } else if (key == "damage") {
      Damage(step);
    } else if (key == "out:") {
      Check(HasLine(last_.out, text), step, "no line on stdout has this");
    } else if (key == "no out:") {
      Check(!HasLine(last_.out, text), step, "a line on stdout has this");
    } else if (key == "no err:") {
      Check(!HasLine(last_.err, text), step, "a line on stderr has this");
    } else if (key == "out is") {
      Check(last_.out == TextOf(step, SplitWords(text).value_or(Arguments{})), step,
            "stdout is another text");
    } else if (key == "exists") {
      Check(fs::exists(PathOf(text)), step, "it does not");
    } else if (key == "missing") {
      Check(!fs::exists(PathOf(text)), step, "it exists");
    } else if (key == "same" || key == "differ") {
      CompareFiles(step);
    } else if (key == "contents" || key == "no contents") {
      FindInFile(step);
    } else if (key == "json" || key == "keep") {
      ReadJson(step);
    }
  }

  void RunCommand(const CliStep& step, size_t index) {
    const absl::StatusOr<std::vector<std::string>> words = SplitWords(step.text);
    if (!words.ok()) return Fail(step, words.status().message());
    const CliCommand command = CommandOf(*words);
    std::deque<ScopedVariable> variables;
    for (const auto& [name, value] : command.variables) variables.emplace_back(name.c_str(), value);
    std::optional<std::string> input;
    if (command.files.contains("<")) input = ContentsOfFile(PathOf(command.files.at("<")));
    last_ = Child(command.arguments, Child::Output::kPipe, input, folder_.path()).Wait();
    shown_ = absl::StrCat("of: stagecoach ", step.text, "\nwhich ended with ", last_.exit_status,
                          "\nstdout:\n", last_.out, "stderr:\n", last_.err);
    for (const auto& [stream, file] : command.files) {
      if (stream == "<") continue;
      std::ofstream(PathOf(file), stream == ">>" ? std::ios::app : std::ios::out)
          << (stream == "2>" ? last_.err : last_.out);
    }
    if (!command.files.contains(">")) CheckCharacters(step, last_.out);
    CheckCharacters(step, last_.err);
    size_t next = index + 1;
    while (next < test_.steps.size() && test_.steps[next].key != "run") ++next;
    CheckEnd(step, absl::MakeSpan(test_.steps).subspan(index + 1, next - index - 1));
  }

  // Checks that nothing that is printed steers a terminal.
  void CheckCharacters(const CliStep& step, absl::string_view text) const {
    Check(absl::c_none_of(text, [](char c) { return c != '\n' && absl::ascii_iscntrl(c); }), step,
          "expected no control characters");
  }

  // Checks the exit status and stderr by the steps that follow the command.
  void CheckEnd(const CliStep& step, absl::Span<const CliStep> expected) {
    int status = 0;
    bool has_out = false, has_err = false;
    std::vector<std::string> patterns;
    for (const CliStep& next : expected) {
      const std::string text = WithNames(next.text, kept_);
      if (next.key == "exit") {
        const std::pair<std::string, std::string> parts =
            absl::StrSplit(text, absl::MaxSplits(": ", 1));
        if (!absl::SimpleAtoi(parts.first, &status)) return Fail(next, "expected a number");
        if (!parts.second.empty()) patterns.push_back(parts.second);
      }
      if (next.key == "err:" && !text.empty()) patterns.push_back(text);
      has_err = has_err || next.key == "err:";
      has_out = has_out || next.key == "out:" || next.key == "out is" || next.key == "json";
    }
    if (last_.exit_status != status) {
      return Fail(step, absl::StrCat("expected the exit status ", status));
    }
    if (status == 0 && !has_err) return;
    if (!has_err && patterns.empty()) patterns.push_back("stagecoach");
    if (!AreLines(LinesIn(last_.err), patterns)) {
      return Fail(step, absl::StrCat("expected on stderr:\n", absl::StrJoin(patterns, "\n")));
    }
    if (status == 0) return;
    Check(last_.err.empty() || absl::StartsWith(last_.err, "stagecoach"), step,
          "expected stderr to begin with the program's name");
    Check(has_out || last_.out.empty(), step, "expected nothing on stdout");
  }

  // Returns the text after "=", or else the indented lines.
  static std::string TextOf(const CliStep& step, const Arguments& words) {
    const auto equals = absl::c_find(words, "=");
    return equals == words.end() || equals + 1 == words.end() ? step.block : *(equals + 1);
  }

  void WriteLines(const CliStep& step) const {
    const Arguments words = SplitWords(step.text).value_or(Arguments{});
    int times = 1;
    if (words.empty() ||
        (words.size() > 2 && words[1] == "*" && !absl::SimpleAtoi(words[2], &times))) {
      return Fail(step, "expected a name, or a name * a number");
    }
    const fs::path path = PathOf(words[0]);
    Check(step.key == "file" || fs::exists(path), step, "there is no such file");
    fs::create_directories(path.parent_path());
    std::ofstream file(path, step.key == "file" ? std::ios::out : std::ios::app);
    for (int i = 0; i < times; ++i) file << TextOf(step, words);
  }

  void Replace(const CliStep& step) const {
    const Arguments words = SplitWords(step.text).value_or(Arguments{});
    if (words.size() != 3) return Fail(step, "expected a name and two texts");
    std::string text = ContentsOfFile(PathOf(words[0]));
    Check(absl::StrReplaceAll({{words[1], words[2]}}, &text) > 0, step, "the text is not there");
    std::ofstream(PathOf(words[0])) << text;
  }

  void Copy(const CliStep& step) const {
    const std::pair<std::string, std::string> names = absl::StrSplit(step.text, ' ');
    std::error_code error;
    fs::create_directories(PathOf(names.second).parent_path());
    fs::copy(PathOf(names.first), PathOf(names.second), fs::copy_options::recursive, error);
    Check(!error, step, error.message());
  }

  void Damage(const CliStep& step) const {
    std::fstream file(PathOf(step.text), std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('\x7F');
    Check(file.good(), step, "there is no such file");
  }

  void CompareFiles(const CliStep& step) const {
    const std::pair<std::string, std::string> names = absl::StrSplit(step.text, ' ');
    for (const std::string& name : {names.first, names.second}) {
      if (!fs::exists(PathOf(name))) return Fail(step, absl::StrCat("there is no ", name));
    }
    const bool same = ContentsOfFile(PathOf(names.first)) == ContentsOfFile(PathOf(names.second));
    Check(same == (step.key == "same"), step, same ? "they are the same" : "they differ");
  }

  void FindInFile(const CliStep& step) const {
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(step.text, absl::MaxSplits(": ", 1));
    if (!fs::exists(PathOf(parts.first))) return Fail(step, "there is no such file");
    const bool has = HasLine(ContentsOfFile(PathOf(parts.first)), parts.second);
    Check(has == (step.key == "contents"), step, has ? "a line has this" : "no line has this");
  }

  void ReadJson(const CliStep& step) {
    const absl::StatusOr<nlohmann::json> document = CliDocument(last_.out);
    if (!document.ok()) return Fail(step, document.status().message());
    if (step.key == "json") {
      const absl::Status status = CheckCliJson(*document, step.text);
      return Check(status.ok(), step, status.message());
    }
    const std::pair<std::string, std::string> parts =
        absl::StrSplit(step.text, absl::MaxSplits(" = ", 1));
    const absl::StatusOr<nlohmann::json> value = CliValue(*document, parts.second);
    if (!value.ok()) return Fail(step, value.status().message());
    kept_json_[parts.first] = value->dump();
    kept_[parts.first] = value->is_string() ? value->get<std::string>() : value->dump();
  }

  const std::string file_;
  const CliCase& test_;
  const testing::TestFolder folder_;
  Finished last_;
  std::string shown_;  // the last command and what it did
  CliNames kept_, kept_json_;
};

}  // namespace

void PerformCliCase(const std::string& file, const CliCase& test) { CliRun(file, test).Perform(); }

}  // namespace stagecoach::tools
