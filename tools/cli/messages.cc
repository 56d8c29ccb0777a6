#include "tools/cli/messages.h"

#include <cstdio>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/utf8.h"
#include "engine/launch/launch.h"

namespace stagecoach::tools {
namespace {

// Nothing also where the variables contradict each other, which another message says.
std::optional<int> OwnRank() {
  const absl::StatusOr<std::optional<engine::Launch>> launch = engine::FindLaunch();
  if (!launch.ok() || !launch->has_value()) return std::nullopt;
  return (*launch)->rank;
}

void Print(absl::string_view text) {
  const std::string line = absl::StrCat("stagecoach: ", Printable(text), "\n");
  std::fputs(line.c_str(), stderr);
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
  constexpr size_t kLongest = 2000, kEnd = 500;
  std::vector<std::string> lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    std::string& printable = lines.emplace_back(base::EscapeControls(line));
    if (printable.size() <= kLongest) continue;
    const size_t begin = base::Utf8Prefix(absl::string_view(printable).substr(0, kLongest - kEnd));
    absl::string_view end = absl::string_view(printable).substr(printable.size() - kEnd);
    while (base::Utf8Prefix(end.substr(0, 4)) == 0) end.remove_prefix(1);
    printable = absl::StrCat(absl::string_view(printable).substr(0, begin), " ... ", end);
  }
  return absl::StrJoin(lines, "\n");
}

void PrintRankNotice(absl::string_view text) { Print(absl::StrCat(RankPrefix(text), text)); }

void PrintNotice(absl::string_view text) {
  if (OwnRank().value_or(0) == 0) Print(text);
}

}  // namespace stagecoach::tools
