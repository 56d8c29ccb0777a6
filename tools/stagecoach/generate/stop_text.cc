#include "tools/stagecoach/generate/stop_text.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace stagecoach::tools {

std::string StopText::Append(absl::string_view more) {
  if (has_ended_) return "";
  absl::StrAppend(&held_, more);
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) end = std::min(end, held_.find(stop));
  if (end != std::string::npos) {
    has_ended_ = true;
    return Finish().substr(0, end);
  }
  size_t begun = 0;
  for (const absl::string_view stop : stops_) {
    for (size_t part = stop.size(); part > begun; --part) {
      if (absl::EndsWith(held_, stop.substr(0, part))) begun = part;
    }
  }
  std::string text = held_.substr(0, held_.size() - begun);
  held_.erase(0, text.size());
  return text;
}

}  // namespace stagecoach::tools
