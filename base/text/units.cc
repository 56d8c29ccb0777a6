#include "base/text/units.h"

#include <array>
#include <cmath>
#include <cstddef>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"

namespace stagecoach::base {
namespace {

struct Unit {
  absl::string_view name;
  int64_t bytes;
};
constexpr std::array<Unit, 10> kUnits = {{{"", 1},
                                          {"B", 1},
                                          {"kB", 1'000},
                                          {"MB", 1'000'000},
                                          {"GB", 1'000'000'000},
                                          {"TB", 1'000'000'000'000},
                                          {"KiB", int64_t{1} << 10},
                                          {"MiB", int64_t{1} << 20},
                                          {"GiB", int64_t{1} << 30},
                                          {"TiB", int64_t{1} << 40}}};

absl::Status NotBytes(absl::string_view text, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("\"", absl::CHexEscape(text),
                                                 "\" is not a number of bytes: ", reason,
                                                 "; write a number and one of B, kB, MB, GB, TB, "
                                                 "KiB, MiB, GiB, TiB, such as 600MB or 1.5GiB"));
}

// Removes the leading digits of `text` and returns them.
absl::string_view ConsumeDigits(absl::string_view& text) {
  size_t length = 0;
  while (length < text.size() && absl::ascii_isdigit(text[length])) ++length;
  const absl::string_view digits = text.substr(0, length);
  text.remove_prefix(length);
  return digits;
}

const Unit* FindUnit(absl::string_view name) {
  for (const Unit& unit : kUnits) {
    if (absl::EqualsIgnoreCase(unit.name, name)) return &unit;
  }
  return nullptr;
}

// Formats `value` with one digit after the point, or none if it has three before.
std::string ThreeDigits(double value) {
  return value < 99.95 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.0f", value);
}

// Formats a duration of at least a minute: the two largest units that matter, from whole seconds.
std::string FormatLong(int64_t seconds) {
  const int64_t minutes = seconds / 60;
  const int64_t hours = minutes / 60;
  if (hours >= 24) return absl::StrCat(hours / 24, "d ", hours % 24, "h");
  if (hours >= 1) return absl::StrCat(hours, "h ", minutes % 60, "m");
  return absl::StrCat(minutes, "m ", seconds % 60, "s");
}

}  // namespace

absl::StatusOr<int64_t> ParseBytes(absl::string_view text) {
  absl::string_view rest = absl::StripAsciiWhitespace(text);
  const absl::string_view whole_digits = ConsumeDigits(rest);
  if (whole_digits.empty()) return NotBytes(text, "it does not start with a digit");
  double fraction = 0;
  if (absl::ConsumePrefix(&rest, ".")) {
    const absl::string_view digits = ConsumeDigits(rest);
    if (digits.empty() || !absl::SimpleAtod(absl::StrCat("0.", digits), &fraction)) {
      return NotBytes(text, "no digit follows the point");
    }
  }
  const Unit* unit = FindUnit(absl::StripLeadingAsciiWhitespace(rest));
  if (unit == nullptr) {
    return NotBytes(text, absl::StrCat("\"", absl::CHexEscape(rest), "\" is not a unit"));
  }
  // Only the fraction goes through floating point, so that every whole number is exact.
  const int64_t part = std::llround(fraction * static_cast<double>(unit->bytes));
  int64_t whole = 0;
  if (!absl::SimpleAtoi(whole_digits, &whole) ||
      whole > (std::numeric_limits<int64_t>::max() - part) / unit->bytes) {
    return NotBytes(text, "it is more than 64 bits can hold");
  }
  return whole * unit->bytes + part;
}

std::string FormatBytes(int64_t bytes) {
  constexpr std::array<absl::string_view, 4> kDecimal = {"kB", "MB", "GB", "TB"};
  if (bytes > -1000 && bytes < 1000) return absl::StrCat(bytes, " B");
  double value = static_cast<double>(bytes) / 1000;
  size_t unit = 0;
  // A value that would print as 1000.0 belongs to the next unit.
  for (; unit + 1 < kDecimal.size() && std::abs(value) >= 999.95; ++unit) value /= 1000;
  return absl::StrFormat("%.1f %s", value, kDecimal[unit]);
}

std::string FormatCount(int64_t count) {
  const std::string digits = absl::StrCat(count);
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool follows_digit = i > 0 && digits[i - 1] != '-';
    if (follows_digit && (digits.size() - i) % 3 == 0) text += ',';
    text += digits[i];
  }
  return text;
}

std::string FormatPercent(double share, int digits) {
  return absl::StrFormat("%.*f %%", digits, 100 * share);
}

std::string FormatChange(double share) { return absl::StrFormat("%+.1f %%", 100 * share); }

std::string FormatDuration(absl::Duration duration) {
  if (duration < absl::ZeroDuration()) return absl::StrCat("-", base::FormatDuration(-duration));
  if (duration == absl::InfiniteDuration()) return "inf";
  const double ns = absl::ToDoubleNanoseconds(duration);
  if (ns < 999.5) return absl::StrFormat("%.0f ns", ns);
  if (ns < 999.5e3) return absl::StrCat(ThreeDigits(ns / 1e3), " us");
  if (ns < 999.5e6) return absl::StrCat(ThreeDigits(ns / 1e6), " ms");
  if (ns < 59.95e9) return absl::StrCat(ThreeDigits(ns / 1e9), " s");
  return FormatLong(absl::ToInt64Seconds(duration + absl::Milliseconds(500)));
}

}  // namespace stagecoach::base
