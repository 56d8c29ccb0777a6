#include "tools/stagecoach/values/stop_condition_option.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/stagecoach/values/flags.h"

namespace stagecoach::tools {

using Comparison = engine::StopCondition::Comparison;

absl::StatusOr<engine::StopCondition> ParseStopCondition(const std::string& text) {
  const size_t sign = text.find_first_of("<>");
  if (sign == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\", expected a metric, one of > >= < <=, and a number: test_accuracy>0.9"));
  }
  engine::StopCondition condition = {.text = text};
  ASSIGN_OR_RETURN(condition.metric, ParseChoice(text.substr(0, sign), engine::MetricNames()));
  const bool has_equal = sign + 1 < text.size() && text[sign + 1] == '=';
  if (text[sign] == '>') {
    condition.comparison = has_equal ? Comparison::kAtLeast : Comparison::kAbove;
  } else {
    condition.comparison = has_equal ? Comparison::kAtMost : Comparison::kBelow;
  }
  constexpr double kMost = std::numeric_limits<double>::max();
  const bool is_share = engine::MetricOf(condition.metric).is_share;
  ASSIGN_OR_RETURN(condition.bound,
                   ParseNumber(text.substr(sign + (has_equal ? 2 : 1)),
                               {.min = is_share ? 0.0 : -kMost, .max = is_share ? 1.0 : kMost}));
  return condition;
}

}  // namespace stagecoach::tools
