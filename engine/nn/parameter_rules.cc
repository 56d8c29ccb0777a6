#include "engine/nn/parameter_rules.h"

#include <fnmatch.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <iterator>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/error_class.h"
#include "base/status_macros.h"
#include "base/text/nearest.h"

namespace stagecoach::engine {
namespace {

constexpr char kForm[] =
    "expected PATTERN:lr-factor=X,weight-decay=Y or PATTERN:frozen, with ; between several";

bool Matches(const ParameterRule& rule, const std::string& name) {
  return fnmatch(rule.pattern.c_str(), name.c_str(), FNM_NOESCAPE) == 0;
}

absl::StatusOr<float> ParseNonNegative(absl::string_view key, absl::string_view text) {
  float value = 0.0F;
  if (absl::SimpleAtof(text, &value) && std::isfinite(value) && value >= 0.0F) return value;
  return absl::InvalidArgumentError(
      absl::StrCat(key, " is \"", text, "\", expected a number of 0 or more"));
}

absl::Status ParseSetting(absl::string_view setting, ParameterRule& rule) {
  if (setting == "frozen") {
    rule.is_frozen = true;
    return absl::OkStatus();
  }
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(setting, absl::MaxSplits('=', 1));
  if (parts.first == "lr-factor") {
    ASSIGN_OR_RETURN(rule.rate_factor, ParseNonNegative(parts.first, parts.second));
    return absl::OkStatus();
  }
  if (parts.first == "weight-decay") {
    ASSIGN_OR_RETURN(rule.weight_decay, ParseNonNegative(parts.first, parts.second));
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", setting, "\" is none of lr-factor=X, weight-decay=Y and frozen"));
}

absl::StatusOr<ParameterRule> ParseRule(absl::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": ", kForm));
  }
  ParameterRule rule = {.pattern = std::string(text.substr(0, colon))};
  for (const absl::string_view setting : absl::StrSplit(text.substr(colon + 1), ',')) {
    const absl::Status status = ParseSetting(setting, rule);
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("\"", text, "\": ", status.message()));
    }
  }
  if (rule.is_frozen && rule != ParameterRule{.pattern = rule.pattern, .is_frozen = true}) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\": frozen parameters have neither lr-factor nor weight-decay"));
  }
  return rule;
}

// The shortest text that reads as this number.
std::string TextOf(float value) {
  char text[32];
  return std::string(text, std::to_chars(std::begin(text), std::end(text), value).ptr);
}

std::string TextOf(const ParameterRule& rule) {
  std::vector<std::string> settings;
  if (rule.is_frozen) settings.emplace_back("frozen");
  const bool has_others = rule.is_frozen || rule.weight_decay.has_value();
  if (rule.rate_factor != 1.0F || !has_others) {
    settings.push_back(absl::StrCat("lr-factor=", TextOf(rule.rate_factor)));
  }
  if (rule.weight_decay.has_value()) {
    settings.push_back(absl::StrCat("weight-decay=", TextOf(*rule.weight_decay)));
  }
  return absl::StrCat(rule.pattern, ":", absl::StrJoin(settings, ","));
}

// Returns "did you mean ..." or a few of the names.
std::string NamesNear(const ParameterRule& rule, const ParameterTable& parameters) {
  constexpr size_t kMost = 4;
  std::vector<std::string> names;
  for (const ModelParameter& parameter : parameters.all()) names.push_back(parameter.name);
  const std::string nearest =
      base::Nearest(absl::StrReplaceAll(rule.pattern, {{"*", ""}, {"?", ""}}), names);
  if (!nearest.empty()) return absl::StrCat("did you mean \"", nearest, "\"?");
  const size_t count = std::min(kMost, names.size());
  const auto begin = names.begin();
  return absl::StrCat(
      "there are \"", absl::StrJoin(begin, begin + static_cast<std::ptrdiff_t>(count), "\", \""),
      "\"", names.size() > count ? absl::StrCat(" and ", names.size() - count, " more") : "");
}

}  // namespace

absl::StatusOr<std::vector<ParameterRule>> ParseParameterRules(absl::string_view text) {
  std::vector<ParameterRule> rules;
  for (const absl::string_view group : absl::StrSplit(text, ';')) {
    ASSIGN_OR_RETURN(rules.emplace_back(), ParseRule(group));
  }
  return rules;
}

std::string ParameterRulesText(absl::Span<const ParameterRule> rules) {
  return absl::StrJoin(rules, ";", [](std::string* out, const ParameterRule& rule) {
    absl::StrAppend(out, TextOf(rule));
  });
}

ParameterRules::ParameterRules(absl::Span<const ParameterRule> rules,
                               absl::Span<const ParameterTie> ties)
    : rules_(rules.begin(), rules.end()) {
  for (const ParameterTie& tie : ties) ties_.emplace_back(NameOf(tie.first), NameOf(tie.second));
}

const ParameterRule* ParameterRules::Find(const std::string& name) const {
  if (rules_.empty()) return nullptr;
  const std::string* other = &name;
  for (const auto& [first, second] : ties_) {
    if (name == first) other = &second;
    if (name == second) other = &first;
  }
  const auto found = std::find_if(rules_.rbegin(), rules_.rend(), [&](const ParameterRule& rule) {
    return Matches(rule, name) || Matches(rule, *other);
  });
  return found == rules_.rend() ? nullptr : &*found;
}

std::vector<int> ParameterRules::CountsIn(const ParameterTable& parameters) const {
  std::vector<int> counts(rules_.size());
  for (const ModelParameter& parameter : parameters.all()) {
    if (parameter.is_copy()) continue;
    const ParameterRule* const rule = Find(parameter.name);
    if (rule != nullptr) ++counts[static_cast<size_t>(rule - rules_.data())];
  }
  return counts;
}

absl::Status ParameterRules::Check(const ParameterTable& parameters) const {
  const std::vector<int> counts = CountsIn(parameters);
  const auto all = parameters.all();
  for (size_t i = 0; i < rules_.size(); ++i) {
    const ParameterRule& rule = rules_[i];
    const auto refuse = [&](const auto&... why) {
      return base::UsageError(
          absl::StrCat("the group of parameters \"", rule.pattern, "\": ", why...));
    };
    const auto any = [&](auto condition) { return std::any_of(all.begin(), all.end(), condition); };
    if (!any([&](const ModelParameter& p) { return Matches(rule, p.name); })) {
      return refuse("no parameter has such a name; ", NamesNear(rule, parameters));
    }
    if (counts[i] == 0) return refuse("later groups have all its parameters");
    const auto is_changed = [&](const ModelParameter& p) {
      return p.update.kind == UpdateRule::Kind::kOptimizer && Find(p.name) == &rule;
    };
    if (!rule.is_frozen && !any(is_changed)) {
      return refuse("no optimizer updates its parameters, so they have no learning rate");
    }
  }
  const bool has_trained = std::any_of(all.begin(), all.end(), [](const ModelParameter& p) {
    return p.update.kind == UpdateRule::Kind::kOptimizer;
  });
  if (rules_.empty() || has_trained) return absl::OkStatus();
  return base::UsageError("the groups of parameters freeze all: leave some to be trained");
}

}  // namespace stagecoach::engine
