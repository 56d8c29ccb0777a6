#include "tools/cli/stop_condition.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/cli/flags.h"

namespace stagecoach::tools {

using Comparison = StopCondition::Comparison;

bool StopCondition::is_accuracy() const { return absl::EndsWith(metric, "_accuracy"); }

double StopCondition::ValueIn(const engine::Figures& figures) const {
  return metric == "train_loss"       ? figures.train_loss
         : metric == "test_loss"      ? figures.test_loss
         : metric == "train_accuracy" ? figures.train_accuracy
                                      : figures.test_accuracy;
}

bool StopCondition::IsMet(const engine::Figures& figures) const {
  const double value = ValueIn(figures);
  switch (comparison) {
    case Comparison::kAbove:
      return value > bound;
    case Comparison::kAtLeast:
      return value >= bound;
    case Comparison::kBelow:
      return value < bound;
    case Comparison::kAtMost:
      return value <= bound;
  }
  return false;
}

absl::StatusOr<StopCondition> ParseStopCondition(const std::string& text) {
  const size_t sign = text.find_first_of("<>");
  if (sign == std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "\"", text, "\", expected a metric, one of > >= < <=, and a number: test_accuracy>0.9"));
  }
  StopCondition condition = {.text = text};
  ASSIGN_OR_RETURN(condition.metric,
                   ParseChoice(text.substr(0, sign),
                               {"train_loss", "test_loss", "train_accuracy", "test_accuracy"}));
  const bool has_equal = sign + 1 < text.size() && text[sign + 1] == '=';
  if (text[sign] == '>') {
    condition.comparison = has_equal ? Comparison::kAtLeast : Comparison::kAbove;
  } else {
    condition.comparison = has_equal ? Comparison::kAtMost : Comparison::kBelow;
  }
  constexpr double kMost = std::numeric_limits<double>::max();
  const bool is_share = condition.is_accuracy();
  ASSIGN_OR_RETURN(condition.bound,
                   ParseNumber(text.substr(sign + (has_equal ? 2 : 1)),
                               {.min = is_share ? 0.0 : -kMost, .max = is_share ? 1.0 : kMost}));
  return condition;
}

}  // namespace stagecoach::tools
