#include "tools/stagecoach/terminal/messages.h"

#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/text/utf8.h"
#include "engine/comm/launch.h"

namespace stagecoach::tools {
namespace {

// Returns nothing either if the variables contradict each other, which another message reports.
std::optional<int> OwnRank() {
  const absl::StatusOr<std::optional<engine::Launch>> launch = engine::FindLaunch();
  if (!launch.ok() || !launch->has_value()) return std::nullopt;
  return (*launch)->rank;
}

void Print(absl::string_view text) {
  const std::string line = absl::StrCat("stagecoach: ", Printable(text), "\n");
  std::fputs(line.c_str(), stderr);
}

// Shortens texts of more than `longest` bytes: half as many remain from the beginning, and the last
// `end`: "aaa…(100000 bytes)…aaa".
std::string Cut(std::string text, size_t longest, size_t end) {
  if (text.size() <= longest) return text;
  const absl::string_view whole = text;
  const size_t begin = base::Utf8Prefix(whole.substr(0, longest / 2));
  absl::string_view rest = whole.substr(whole.size() - end);
  while (base::Utf8Prefix(rest.substr(0, 4)) == 0) rest.remove_prefix(1);
  return absl::StrCat(whole.substr(0, begin), "…(", whole.size(), " bytes)…", rest);
}

}  // namespace

std::string RankPrefix(absl::string_view message) {
  const std::optional<int> rank = OwnRank();
  if (!rank.has_value()) return "";
  const std::string name = absl::StrCat("rank ", *rank);
  const bool is_named = absl::StartsWith(message, absl::StrCat(name, ": ")) ||
                        absl::StartsWith(message, absl::StrCat(name, ", "));
  return is_named ? "" : absl::StrCat(name, ": ");
}

std::string Printable(absl::string_view text) {
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    std::vector<std::string> words = absl::StrSplit(base::EscapeControls(line), ' ');
    for (std::string& word : words) word = Cut(std::move(word), /*longest=*/300, /*end=*/50);
    lines.push_back(Cut(absl::StrJoin(words, " "), /*longest=*/2000, /*end=*/500));
  }
  return absl::StrJoin(lines, "\n");
}

void PrintRankNotice(absl::string_view text) { Print(absl::StrCat(RankPrefix(text), text)); }

void PrintNotice(absl::string_view text) {
  if (OwnRank().value_or(0) == 0) Print(text);
}

}  // namespace stagecoach::tools
