#ifndef STAGECOACH_TESTS_TOOLS_CLI_FILES_CLI_JSON_H_
#define STAGECOACH_TESTS_TOOLS_CLI_FILES_CLI_JSON_H_

#include <nlohmann/json.hpp>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace stagecoach::tools {

// Returns the JSON that a command printed: the only object, or, if every line is an event, an
// object that has an array of each kind of event.
absl::StatusOr<nlohmann::json> CliDocument(const std::string& out);

// Returns what a path such as `end.devices[0].stages[-1].stage` leads to; `.` is everything. A name
// after an array without an index is of its last element; `.size` is how many elements an array or
// an object has; after `[*]` follows what each element has, and the result is the array of that.
// `end.{steps,epochs}` is the array of both.
absl::StatusOr<nlohmann::json> CliValue(const nlohmann::json& document, const std::string& path);

// Returns an error unless the assertions hold, which are separated by " and ": `PATH OPERATOR
// VALUE` or `PATH absent`. The operators are = != < <= > >=, the value is JSON or another path.
// Arrays are compared element by element, or each element with one number.
absl::Status CheckCliJson(const nlohmann::json& document, const std::string& assertions);

}  // namespace stagecoach::tools

#endif  // STAGECOACH_TESTS_TOOLS_CLI_FILES_CLI_JSON_H_
