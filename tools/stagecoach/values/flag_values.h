#ifndef STAGECOACH_TOOLS_STAGECOACH_VALUES_FLAG_VALUES_H_
#define STAGECOACH_TOOLS_STAGECOACH_VALUES_FLAG_VALUES_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "tools/stagecoach/values/flags.h"

// The values that the flags of several commands take, for sources that register them (add_flag.h).
namespace stagecoach::tools {

inline constexpr int kMaxStages = 1024;
inline constexpr int kMaxLayers = 10'000;
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxBatch = int64_t{1} << 20;
inline constexpr int64_t kMaxContext = int64_t{1} << 20;
inline constexpr int64_t kMaxSteps = int64_t{1} << 40;
inline constexpr int kMaxInt = std::numeric_limits<int>::max();

// Each returns a `parse` of AddFlag: of a whole number in [min, max]; of a number.
inline auto CountIn(int64_t min, int64_t max) {
  return [min, max](const std::string& text) { return ParseCount(text, min, max); };
}

inline auto IntIn(int min, int max) {
  return [min, max](const std::string& text) -> absl::StatusOr<int> {
    return ParseCount(text, min, max);
  };
}

inline auto PowerOfTwoUpTo(int most) {
  return [most](const std::string& text) -> absl::StatusOr<int> {
    const absl::StatusOr<int64_t> count = ParseCount(text, 1, most);
    if (!count.ok()) return count.status();
    if (std::has_single_bit(static_cast<uint64_t>(*count))) return static_cast<int>(*count);
    return absl::InvalidArgumentError(absl::StrCat("expected a power of two, not ", *count));
  };
}

inline auto NumberIn(const NumberRange& range) {
  return [range](const std::string& text) { return ParseNumber(text, range); };
}

// Returns the help text of a flag that has a default.
inline std::string Describe(const std::string& text, const std::string& value) {
  return absl::StrCat(text, " [", value, "]");
}

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TOOLS_STAGECOACH_VALUES_FLAG_VALUES_H_
