#ifndef STAGECOACH_BASE_TEXT_UNITS_H_
#define STAGECOACH_BASE_TEXT_UNITS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace stagecoach::base {

// Parses a number of bytes as people write it: "4096", "600MB", "1.5 GiB". Units are B, decimal kB
// MB GB TB and binary KiB MiB GiB TiB, in any case; no unit means bytes. Fractions of a byte are
// rounded to the nearest. Anything else, such as a sign, an exponent or more than int64 holds, is
// InvalidArgument, which lists the units.
absl::StatusOr<int64_t> ParseBytes(absl::string_view text);

// Formats bytes in the largest decimal unit that leaves at least 1, with one digit after the point:
// "390.2 MB", "512 B".
std::string FormatBytes(int64_t bytes);

// Formats a number with commas between thousands: "1,234,567".
std::string FormatCount(int64_t count);

// Formats a share as a percentage: 0.1234 is "12.3 %".
std::string FormatPercent(double share, int digits = 1);
// Formats a share as a percentage with its sign: "+12.3 %".
std::string FormatChange(double share);

// Formats a duration for people; call it as base::FormatDuration, since absl has one too: "45 ns",
// "1.5 ms", "850 ms", "12.3 s", "1m 20s", "3h 5m", "2d 4h", "inf".
std::string FormatDuration(absl::Duration duration);

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_UNITS_H_
