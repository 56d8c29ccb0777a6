#include "engine/runtime/device/choices.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace stagecoach::engine {

absl::Status CheckSameChoices(absl::Span<const std::vector<std::string>> choices) {
  struct Choice {
    size_t rank;
    absl::string_view way;
  };
  std::map<absl::string_view, Choice> first;
  for (size_t rank = 0; rank < choices.size(); ++rank) {
    for (const absl::string_view text : choices[rank]) {
      const size_t colon = text.rfind(": ");
      if (colon == absl::string_view::npos) continue;
      const absl::string_view what = text.substr(0, colon);
      const absl::string_view way = text.substr(colon + 2);
      const Choice& known = first.try_emplace(what, Choice{rank, way}).first->second;
      if (known.way == way) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          "ranks ", known.rank, " and ", rank, " would not compute the same bits: ", what, " is ",
          known.way, " on the one and ", way,
          " on the other; start all with one version of cuBLASLt and with the same tuning file, "
          "--tuning FILE, or none, --tuning none"));
    }
  }
  return absl::OkStatus();
}

}  // namespace stagecoach::engine
