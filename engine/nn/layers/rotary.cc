#include "engine/nn/layers/rotary.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "engine/nn/parsing/parsed_layer.h"

namespace stagecoach::engine {
namespace {

constexpr double kMost = 1e12;
constexpr double kTwoPi = 6.283185307179586;

// The names in model files, by RotaryKind.
constexpr const char* kKinds[] = {"linear", "yarn", "longrope", "dynamic"};

bool IsPositive(double value) { return value >= 1.0 / kMost && value <= kMost; }

// Returns the share of a frequency that is kept, of kLinear: by the turns that it makes.
double KeptByTurns(const RotaryScaling& scaling, double frequency) {
  const double turns = static_cast<double>(scaling.original_positions) * frequency / kTwoPi;
  return std::clamp((turns - scaling.low_turns) / (scaling.high_turns - scaling.low_turns), 0.0,
                    1.0);
}

// Returns the same of kYarn, by the number of the pair.
double KeptByPair(const RotaryScaling& scaling, double base, int64_t rotated, int64_t pair) {
  const auto R = static_cast<double>(rotated);
  const auto original = static_cast<double>(scaling.original_positions);
  // The pair, as a real number, that makes that many turns in the original positions.
  const auto pair_of = [&](double turns) {
    return R * std::log(original / (turns * kTwoPi)) / (2.0 * std::log(base));
  };
  double low = pair_of(scaling.high_turns), high = pair_of(scaling.low_turns);
  if (scaling.truncates) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, R - 1.0);
  if (low == high) high += 0.001;
  return 1.0 - std::clamp((static_cast<double>(pair) - low) / (high - low), 0.0, 1.0);
}

double DivisorOf(const RotaryScaling& scaling, double base, int64_t rotated, int64_t pair) {
  const double frequency =
      std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(rotated));
  const double kept = scaling.kind == RotaryKind::kYarn ? KeptByPair(scaling, base, rotated, pair)
                                                        : KeptByTurns(scaling, frequency);
  if (kept <= 0.0) return scaling.factor;
  if (kept >= 1.0) return 1.0;
  return 1.0 / ((1.0 - kept) / scaling.factor + kept);
}

absl::Status ReadDivisors(const char* key, base::ObjectReader& reader,
                          std::vector<double>& divisors) {
  ASSIGN_OR_RETURN(const base::ArrayReader entries, reader.RequiredArray(key));
  for (size_t i = 0; i < entries.size(); ++i) {
    ASSIGN_OR_RETURN(divisors.emplace_back(), entries.Double(i));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckRotaryScaling(const RotaryScaling& scaling) {
  const auto refuse = [](const auto&... why) {
    return absl::InvalidArgumentError(absl::StrCat(why...));
  };
  if (!(scaling.factor >= 1.0 && scaling.factor <= kMost)) {
    return refuse("rotary positions cannot be scaled by ", scaling.factor, ", expected at least 1");
  }
  if (!(scaling.low_turns > 0.0 && scaling.low_turns < scaling.high_turns &&
        scaling.high_turns <= kMost)) {
    return refuse("rotary positions cannot be scaled between ", scaling.low_turns, " and ",
                  scaling.high_turns, " turns, expected positive numbers in ascending order");
  }
  if (!IsPositive(scaling.scale)) {
    return refuse("rotations cannot be scaled by ", scaling.scale, ", expected a positive number");
  }
  const bool needs_original = scaling.kind != RotaryKind::kLinear;
  if (scaling.original_positions < (needs_original ? 1 : 0)) {
    return refuse("rotary positions cannot be scaled from ", scaling.original_positions,
                  " original ones");
  }
  const size_t divisors = scaling.short_divisors.size();
  if (divisors != scaling.long_divisors.size() ||
      (divisors > 0) != (scaling.kind == RotaryKind::kLongRope) ||
      divisors > static_cast<size_t>(kernels::kMaxScaledPairs)) {
    return refuse("rotary positions cannot be scaled by ", divisors, " short and ",
                  scaling.long_divisors.size(), " long divisors, expected as many, at most ",
                  kernels::kMaxScaledPairs);
  }
  for (const std::vector<double>* const list : {&scaling.short_divisors, &scaling.long_divisors}) {
    for (const double divisor : *list) {
      if (!IsPositive(divisor)) {
        return refuse("rotary positions cannot be divided by ", divisor,
                      ", expected a positive number");
      }
    }
  }
  return absl::OkStatus();
}

ResolvedRotary ResolveRotary(const RotaryScaling& scaling, float base, int64_t rotated,
                             int64_t positions) {
  ResolvedRotary resolved = {.base = base, .scaling = {.scale = scaling.scale}};
  if (base == 0.0F || scaling.is_none()) return resolved;
  const int64_t pairs = rotated / 2;
  if (scaling.kind == RotaryKind::kDynamic) {
    const auto ratio =
        static_cast<double>(positions) / static_cast<double>(scaling.original_positions);
    if (ratio <= 1.0 || rotated <= 2) return resolved;
    const double growth = scaling.factor * ratio - (scaling.factor - 1.0);
    const auto R = static_cast<double>(rotated);
    resolved.base = static_cast<float>(double{base} * std::pow(growth, R / (R - 2.0)));
    return resolved;
  }
  if (scaling.kind == RotaryKind::kLongRope) {
    const bool is_long = positions > scaling.original_positions;
    const std::vector<double>& own = is_long ? scaling.long_divisors : scaling.short_divisors;
    resolved.scaling.pairs = std::ssize(own);
    std::copy(own.begin(), own.end(), resolved.scaling.divisors);
    return resolved;
  }
  // Those of more pairs are refused by the operation.
  resolved.scaling.pairs = pairs;
  for (int64_t i = 0; i < std::min(pairs, kernels::kMaxScaledPairs); ++i) {
    resolved.scaling.divisors[i] = DivisorOf(scaling, double{base}, rotated, i);
  }
  return resolved;
}

std::string RotaryScalingText(const RotaryScaling& scaling) {
  const auto number = [](double value) { return nlohmann::json(value).dump(); };
  const RotaryScaling usual;
  std::vector<std::string> keys;
  if (scaling.kind != usual.kind) {
    keys.push_back(absl::StrCat("type = \"", kKinds[static_cast<size_t>(scaling.kind)], "\""));
  }
  if (scaling.kind != RotaryKind::kLongRope) {
    keys.push_back(absl::StrCat("factor = ", number(scaling.factor)));
  }
  if (scaling.original_positions > 0) {
    keys.push_back(absl::StrCat("original_context = ", scaling.original_positions));
  }
  const bool has_turns = scaling.kind == RotaryKind::kYarn ||
                         (scaling.kind == usual.kind && scaling.original_positions > 0);
  if (has_turns) {
    keys.push_back(absl::StrCat("low_turns = ", number(scaling.low_turns)));
    keys.push_back(absl::StrCat("high_turns = ", number(scaling.high_turns)));
  }
  if (!scaling.truncates) keys.emplace_back("truncate = false");
  if (scaling.scale != usual.scale) {
    keys.push_back(absl::StrCat("scale = ", number(scaling.scale)));
  }
  if (scaling.kind == RotaryKind::kLongRope) {
    keys.push_back(absl::StrCat("divisors = ", nlohmann::json(scaling.short_divisors).dump()));
    keys.push_back(absl::StrCat("long_divisors = ", nlohmann::json(scaling.long_divisors).dump()));
  }
  return absl::StrCat("{ ", absl::StrJoin(keys, ", "), " }");
}

absl::StatusOr<RotaryScaling> ParseRotaryScaling(base::ObjectReader reader) {
  RotaryScaling scaling;
  ASSIGN_OR_RETURN(const std::string name, reader.OptionalString("type", kKinds[0]));
  const std::vector<std::string> known(std::begin(kKinds), std::end(kKinds));
  ASSIGN_OR_RETURN(const size_t kind, ChooseAmong(known, "type", name, reader));
  scaling.kind = static_cast<RotaryKind>(kind);
  const bool is_yarn = scaling.kind == RotaryKind::kYarn;
  const bool is_list = scaling.kind == RotaryKind::kLongRope;
  const char* first_key = "factor";
  if (is_list) {
    first_key = "divisors";
    RETURN_IF_ERROR(ReadDivisors("divisors", reader, scaling.short_divisors));
    RETURN_IF_ERROR(ReadDivisors("long_divisors", reader, scaling.long_divisors));
  } else {
    ASSIGN_OR_RETURN(scaling.factor, reader.RequiredDouble("factor", {.min = 1.0, .max = 1e6}));
  }
  if (scaling.kind == RotaryKind::kLinear) {
    ASSIGN_OR_RETURN(scaling.original_positions,
                     reader.OptionalInt64("original_context", 0, kFileCounts));
  } else {
    ASSIGN_OR_RETURN(scaling.original_positions,
                     reader.RequiredInt64("original_context", kFileCounts));
  }
  if (is_yarn) scaling.high_turns = 32.0;
  if (is_yarn || scaling.kind == RotaryKind::kLinear) {
    ASSIGN_OR_RETURN(scaling.low_turns, reader.OptionalDouble("low_turns", scaling.low_turns));
    ASSIGN_OR_RETURN(scaling.high_turns, reader.OptionalDouble("high_turns", scaling.high_turns));
    first_key = "low_turns";
  }
  if (is_yarn) {
    ASSIGN_OR_RETURN(scaling.truncates, reader.OptionalBool("truncate", true));
  }
  if (is_yarn || is_list) ASSIGN_OR_RETURN(scaling.scale, reader.OptionalDouble("scale", 1.0));
  RETURN_IF_ERROR(reader.Finish());
  const absl::Status checked = CheckRotaryScaling(scaling);
  if (checked.ok()) return scaling;
  return reader.Error(first_key, checked.message());
}

}  // namespace stagecoach::engine
