#ifndef STAGECOACH_BASE_TEXT_TOML_H_
#define STAGECOACH_BASE_TEXT_TOML_H_

#include <nlohmann/json_fwd.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/text/json.h"

namespace stagecoach::base {

// Parses a TOML 1.0 document into the JSON object of the same shape, to be read with ObjectReader.
// Refuses what JSON cannot hold (dates, times, inf and nan) and what exceeds the limits or nests
// deeper than 64 levels, counting the document itself as the first. Errors are InvalidArgument with
// "line:column" (from 1), or ResourceExhausted when a limit is exceeded. Safe on hostile input.
absl::StatusOr<nlohmann::json> ParseToml(absl::string_view text, const JsonLimits& limits = {});

}  // namespace stagecoach::base

#endif  // STAGECOACH_BASE_TEXT_TOML_H_
